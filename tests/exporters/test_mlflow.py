"""What is handed to MLflow, when, and what happens when it does not take it."""

import json
import threading
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import msgspec
import pytest
from exporters.rounds import job_round
from exporters.support import context

from perfd.config import HttpClientConfig, MlflowConfig, MlflowTeam
from perfd.errors import ConfigError
from perfd.exporters.exporter import Round
from perfd.exporters.mlflow import MlflowExporter
from perfd.model import JobOutcome, ParallelLayout

PREFIX = "/api/2.0/mlflow/"


class FakeMlflow:
    """The calls that the exporter makes; `refuse` answers (status, text) instead when it is set."""

    def __init__(self):
        self.experiments, self.runs, self.calls = [], {}, []
        self.refuse = None
        self.users = set()

    def handle(self, call, asked):
        match call:
            case "experiments/create" if asked["name"] in self.experiments:
                return 400, {"error_code": "RESOURCE_ALREADY_EXISTS"}
            case "experiments/create":
                self.experiments.append(asked["name"])
                return 200, {"experiment_id": str(len(self.experiments) - 1)}
            case "experiments/search":
                name = asked["filter"].removeprefix("name LIKE '").removesuffix("'")
                return 200, {
                    "experiments": [{"experiment_id": str(self.experiments.index(name)), "name": name}]
                }
            case "runs/search":
                key = asked["filter"].split("'")[1]
                found = [
                    {"info": {"run_id": run_id}}
                    for run_id, run in self.runs.items()
                    if run["tags"]["perfd.key"] == key and run["status"] == "RUNNING"
                ]
                return 200, {"runs": found} if found else {}
            case "runs/create":
                run_id = str(len(self.runs))
                tags = {tag["key"]: tag["value"] for tag in asked["tags"]}
                experiment = self.experiments[int(asked["experiment_id"])]
                run = {
                    "name": asked["run_name"],
                    "tags": tags,
                    "status": "RUNNING",
                    "params": {},
                    "metrics": [],
                }
                self.runs[run_id] = run | {"experiment": experiment}
                return 200, {"run": {"info": {"run_id": run_id}}}
            case "runs/log-batch":
                run = self.runs.get(asked["run_id"])
                if run is None:
                    return 404, {"error_code": "RESOURCE_DOES_NOT_EXIST"}
                assert len(asked["metrics"]) <= 1000
                run["metrics"] += asked["metrics"]
                run["params"] |= {one["key"]: one["value"] for one in asked["params"]}
                run["tags"] |= {one["key"]: one["value"] for one in asked["tags"]}
                return 200, {}
            case "runs/update":
                self.runs[asked["run_id"]]["status"] = asked["status"]
                return 200, {}
        return 404, {}

    def steps(self, run_id="0"):
        return [one["step"] for one in self.runs[run_id]["metrics"] if one["key"] == "perfd/step_time_s"]


@contextmanager
def served(fake):
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            call = self.path.removeprefix(PREFIX)
            fake.calls.append(call)
            fake.users.add(self.headers.get("Authorization"))
            status, answer = fake.refuse or fake.handle(call, body)
            data = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def fake():
    return FakeMlflow()


@pytest.fixture
def url(fake):
    with served(fake) as url:
        yield url


def rounds(*steps, **options):
    return [Round(time_unix_s=float(step), jobs=[job_round(step, **options)]) for step in steps]


OPEN = []


@pytest.fixture(autouse=True)
def connections_are_closed():
    yield
    while OPEN:
        OPEN.pop().close()


def exported(url, given, *rounds_, **options):
    tested = MlflowExporter(MlflowConfig(url=url, **options), given)
    OPEN.append(tested)
    for round_ in rounds_:
        tested.export(round_)
    return tested


def test_each_step_is_logged_once_with_the_jobs_labels_and_layout(fake, url):
    labels = {"perfd_job": "llm", "user": "ada", "account": "nlp"}
    given = context()
    exported(url, given, *rounds(1, 1, 2, 5, labels=labels, title="pretrain"), tags={"site": "a"})
    [run] = fake.runs.values()
    assert fake.steps() == [1, 2, 5]
    assert (run["name"], run["experiment"], run["status"]) == ("pretrain llm", "perfd", "RUNNING")
    assert (
        run["tags"].items()
        >= {
            "perfd.job": "llm",
            "perfd.user": "ada",
            "perfd.account": "nlp",
            "perfd.attempt": "1",
            "mlflow.user": "ada",
            "site": "a",
        }.items()
    )
    assert (given.tally.sent, given.tally.lost, given.tally.pending) == (3, 0, 0)


def test_what_becomes_known_of_a_job_is_a_parameter_once(fake, url):
    def job(step, **layout):
        found = job_round(step)
        return replace(
            found, summary=replace(found.summary, framework="nemo", parallel=ParallelLayout(**layout))
        )

    known = [job(1), job(2, world_size=8), job(3, world_size=8, tp=2), job(4, world_size=8, tp=4)]
    exported(url, context(), *(Round(time_unix_s=float(one.step), jobs=[one]) for one in known))
    # MLflow refuses to change one.
    assert fake.runs["0"]["params"] == {"perfd.framework": "nemo", "perfd.world_size": "8", "perfd.tp": "2"}


@pytest.mark.parametrize(
    ("outcome", "status"),
    [
        (JobOutcome.COMPLETED, "FINISHED"),
        (JobOutcome.FAILED, "FAILED"),
        (JobOutcome.OUT_OF_MEMORY, "FAILED"),
        (JobOutcome.NODE_FAILURE, "FAILED"),
        (JobOutcome.CANCELLED, "KILLED"),
        (JobOutcome.PREEMPTED, "KILLED"),
        (JobOutcome.TIME_LIMIT, "KILLED"),
        (JobOutcome.UNKNOWN, "FINISHED"),
        (None, "FINISHED"),
    ],
)
def test_the_end_of_a_job_is_its_runs_status_with_a_description(fake, url, outcome, status):
    ended = job_round(2, ended=True, outcome=outcome)
    exported(url, context(), *rounds(1), Round(time_unix_s=2.0, jobs=[ended], finals=[ended.summary]))
    [run] = fake.runs.values()
    assert run["status"] == status
    assert run["tags"].get("perfd.outcome") == outcome
    assert run["tags"]["mlflow.note.content"].startswith(f"**{ended.summary.bottleneck.headline}**")
    finals = {one["key"]: one["value"] for one in run["metrics"] if one["key"].startswith("perfd/final/")}
    assert finals["perfd/final/step_time_s"] == 1.0


def test_every_attempt_is_a_run(fake, url):
    exported(url, context(), *rounds(10, 11), *rounds(9, 10, attempt=2))
    assert (fake.steps("0"), fake.steps("1")) == ([10, 11], [9, 10])
    assert [run["status"] for run in fake.runs.values()] == ["FINISHED", "RUNNING"]


def test_a_forgotten_job_ends_and_a_restart_of_perfd_goes_on_in_the_same_run(fake, url):
    given = context()
    first = exported(url, given, *rounds(1))
    first.export(Round(time_unix_s=2.0, finals=[job_round(1).summary], last=True))
    first.close()
    assert [run["status"] for run in fake.runs.values()] == ["RUNNING"]
    second = exported(url, context(), *rounds(2))
    assert fake.steps() == [1, 2]
    second.export(Round(time_unix_s=3.0))
    assert [run["status"] for run in fake.runs.values()] == ["FINISHED"]


def test_rows_wait_while_the_server_fails_or_refuses_credentials_and_none_is_lost(fake, url):
    for refusal in ((503, {}), (401, {}), (403, {}), (404, {})):
        fake.runs.clear()
        fake.refuse = refusal
        given = context()
        tested = exported(url, given, *rounds(*range(1, 401)))
        assert (given.tally.pending, given.tally.lost, given.tally.retries) == (400, 0, 1)
        fake.refuse = None
        given.clock.advance(100.0)
        tested.export(rounds(401)[0])
        assert fake.steps("0") == list(range(1, 402))
        assert (given.tally.pending, given.tally.lost) == (0, 0)


def test_a_server_that_is_away_is_asked_less_and_less_often():
    given = context()
    tested = MlflowExporter(MlflowConfig(url="http://127.0.0.1:1"), given)
    for step in range(100):
        tested.export(rounds(step)[0])
        given.clock.advance(1.0)
    assert given.tally.retries == 7
    tested.close()
    assert (given.tally.lost, given.tally.pending) == (100, 0)


def test_a_run_that_a_user_deleted_loses_its_row_and_begins_anew(fake, url):
    given = context()
    tested = exported(url, given, *rounds(1))
    fake.runs["gone"] = fake.runs.pop("0") | {"status": "FINISHED"}
    tested.export(rounds(2)[0])
    tested.export(rounds(3)[0])
    assert given.tally.lost == 1
    assert fake.steps("1") == [3]


def test_teams_have_experiments_tags_and_credentials_of_their_own(fake, url, tmp_path):
    (tmp_path / "token").write_text("vision-token")
    teams = [
        MlflowTeam(
            match={"account": "vision*"},
            experiment="vision",
            tags={"team": "v"},
            http=HttpClientConfig(bearer_token_file=str(tmp_path / "token")),
        )
    ]
    jobs = [
        job_round(1, name=name, labels={"perfd_job": name, "account": name}) for name in ("nlp", "vision1")
    ]
    exported(url, context(), Round(time_unix_s=1.0, jobs=jobs), teams=teams, tags={"team": "none"})
    found = [(run["experiment"], run["tags"]["team"]) for run in fake.runs.values()]
    assert found == [("perfd", "none"), ("vision", "v")]
    assert fake.users == {None, "Bearer vision-token"}


def test_names_of_any_length_and_alphabet_are_taken(fake, url):
    names = ["x" * 10_000, "é\n'\"`\\" * 2_000, "\ud800", ""]
    jobs = [job_round(1, name=name, labels={"perfd_job": name, "user": name}, title=name) for name in names]
    exported(url, context(), Round(time_unix_s=1.0, jobs=jobs))
    assert len(fake.runs) == len(names)
    assert all(len(run["name"]) <= 250 for run in fake.runs.values())
    assert all(len(value) <= 5_000 for run in fake.runs.values() for value in run["tags"].values())


def test_jobs_beyond_the_bound_are_counted(fake, url):
    given = context()
    jobs = [job_round(1, name=name) for name in ("a", "b")]
    exported(url, given, Round(time_unix_s=0.0, jobs=jobs), max_runs=1)
    assert (len(fake.runs), given.tally.lost) == (1, 1)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"url": "mlflow:5000"}, "is not an http or https URL"),
        ({"experiment": "x" * 501}, "1 to 500 characters"),
        ({"teams": [{"match": {}}]}, "it is empty"),
        ({"teams": [{"match": {"user": "a"}, "experiment": ""}]}, "1 to 500 characters"),
        ({"http": {"bearer_token_file": "/no/token"}}, "cannot read /no/token"),
    ],
)
def test_a_mistake_in_the_configuration_is_an_error_at_the_start(options, words):
    config = msgspec.convert({"url": "http://127.0.0.1:1", **options}, MlflowConfig)
    with pytest.raises(ConfigError, match=words):
        MlflowExporter(config, context())

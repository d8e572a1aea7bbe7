"""A real MLflow tracking server on loopback."""

import json
import os
import urllib.request
from dataclasses import replace
from pathlib import Path

import pytest
from exporters.rounds import job_round
from exporters.support import real_context, until

from perfd.config import MlflowConfig
from perfd.exporters.exporter import Round
from perfd.exporters.mlflow import MlflowExporter
from perfd.model import JobOutcome, ParallelLayout
from tests.support.services import Service

PROGRAMS = Path(os.environ.get("PERFD_SERVICES", "/nowhere"))
pytestmark = [
    pytest.mark.system,
    pytest.mark.timeout(1500),
    pytest.mark.skipif(
        not (PROGRAMS / "mlflow").exists() and not os.environ.get("CI"),
        reason="needs MLflow (deploy/lock/services.txt), in the folder PERFD_SERVICES",
    ),
]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("mlflow")
    command = [PROGRAMS / "mlflow", "server", "--host", "127.0.0.1", "--workers", "1"]
    command += ["--backend-store-uri", f"sqlite:///{folder}/mlflow.db", "--artifacts-destination", folder]
    # It imports for long, and makes its tables: minutes on a busy machine. One that ended is seen at once.
    with pytest.MonkeyPatch.context() as patch:
        # Its evaluations have processes of their own, which import for as long.
        patch.setenv("MLFLOW_SERVER_ENABLE_JOB_EXECUTION", "false")
        with Service(
            lambda port: [*command, "--port", port], ready="/health", folder=folder, start_within_s=600.0
        ) as started:
            yield started


@pytest.fixture
def exported(server):
    made = []

    def make(given, **options):
        config = MlflowConfig(url=server.url, backoff_initial_s=0.05, backoff_max_s=0.1, **options)
        made.append(MlflowExporter(config, given))
        return made[-1]

    yield make
    for exporter in made:
        exporter.close()


def asked(server, call, body):
    request = urllib.request.Request(
        f"{server.url}/api/2.0/mlflow/{call}",
        data=json.dumps(body).encode(),
        headers={"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)


def runs_of(server, experiment):
    """All runs of an experiment, the oldest first."""
    found = asked(server, "experiments/search", {"filter": f"name = '{experiment}'", "max_results": 1})
    ids = [one["experiment_id"] for one in found.get("experiments", ())]
    body = {"experiment_ids": ids, "order_by": ["attributes.start_time ASC"], "max_results": 100}
    return asked(server, "runs/search", body).get("runs", [])


def steps_of(server, run, key="perfd/step_time_s"):
    url = f"{server.url}/api/2.0/mlflow/metrics/get-history"
    with urllib.request.urlopen(
        f"{url}?run_id={run['info']['run_id']}&metric_key={key}", timeout=60
    ) as answer:
        return [point["step"] for point in json.load(answer).get("metrics", ())]


def pairs(run, kind):
    return {one["key"]: one["value"] for one in run["data"].get(kind, ())}


def test_a_job_is_a_run_with_metrics_by_step_tags_parameters_status_and_description(server, exported):
    given = real_context()
    tested = exported(given, experiment='it\'s "pre"-training', tags={"site": "a"})
    labels = {"perfd_job": "17", "user": "ada", "account": "nlp"}
    for step in range(1, 60):
        tested.export(
            Round(
                time_unix_s=1e9 + step,
                jobs=[job_round(step, name="17", labels=labels, title="llm", loss=2.5)],
            )
        )
    layout = ParallelLayout(world_size=8, tp=2)
    ended = job_round(60, name="17", labels=labels, title="llm", ended=True, outcome=JobOutcome.OUT_OF_MEMORY)
    ended = replace(ended, summary=replace(ended.summary, framework=None, parallel=layout))
    tested.export(Round(time_unix_s=1e9 + 60, jobs=[ended], finals=[ended.summary]))
    assert (given.tally.sent, given.tally.lost) == (61, 0)
    # A quoted name is found again too.
    tested.export(Round(time_unix_s=1e9 + 61, jobs=[job_round(1, name="18")]))
    [experiment] = asked(server, "experiments/search", {"filter": "name LIKE '%pre%'", "max_results": 10})[
        "experiments"
    ]
    assert experiment["name"] == 'it\'s "pre"-training'
    body = {"experiment_ids": [experiment["experiment_id"]], "order_by": ["attributes.start_time ASC"]}
    run, other = asked(server, "runs/search", body)["runs"]
    assert (run["info"]["run_name"], run["info"]["status"]) == ("llm 17", "FAILED")
    assert other["info"]["status"] == "RUNNING"
    assert steps_of(server, run) == list(range(1, 61))
    assert pairs(run, "metrics")["perfd/final/step_time_s"] == 1.0
    tags = pairs(run, "tags")
    assert (tags["perfd.user"], tags["perfd.account"], tags["site"]) == ("ada", "nlp", "a")
    assert tags["perfd.outcome"] == "out_of_memory"
    assert ended.summary.bottleneck.headline in tags["mlflow.note.content"]
    assert pairs(run, "params") == {"perfd.world_size": "8", "perfd.tp": "2"}


def test_rows_wait_while_the_server_is_away_and_a_restart_of_perfd_goes_on_in_the_run(server, exported):
    given = real_context()
    tested = exported(given, experiment="away")
    tested.export(Round(time_unix_s=1e9, jobs=[job_round(1)]))
    server.kill()
    for step in range(2, 50):
        tested.export(Round(time_unix_s=1e9 + step, jobs=[job_round(step)]))
    assert (given.tally.sent, given.tally.lost) == (1, 0)
    server.start()

    def all_sent():
        tested.export(Round(time_unix_s=1e9 + 50, jobs=[job_round(49)]))
        return given.tally.pending == 0

    until(all_sent, within_s=300.0)
    tested.export(Round(time_unix_s=1e9 + 51, finals=[job_round(49).summary], last=True))
    tested.close()
    again = exported(real_context(), experiment="away")
    again.export(Round(time_unix_s=1e9 + 60, jobs=[job_round(50)]))
    [run] = runs_of(server, "away")
    assert steps_of(server, run) == list(range(1, 51))
    assert run["info"]["status"] == "RUNNING"


def test_names_of_10_kb_and_of_any_alphabet_are_runs(server, exported):
    names = ["x" * 10_000, "é\n'\"`\\%" * 1_500, "\ud800", "a/b: c"]
    given = real_context()
    jobs = [
        job_round(1, name=name, labels={"perfd_job": name, "user": name, "account": name}, title=name)
        for name in names
    ]
    exported(given, experiment="names").export(Round(time_unix_s=1e9, jobs=jobs))
    assert (given.tally.sent, given.tally.lost, given.tally.retries) == (4, 0, 0)
    assert len(runs_of(server, "names")) == len(names)

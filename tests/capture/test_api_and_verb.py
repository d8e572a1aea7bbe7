"""`perfd capture` against the HTTP routes and a real coordinator."""

import http.client
import json
import threading
import urllib.request
from dataclasses import replace

import pytest

from perfd.capture.capture_routes import capture_routes
from perfd.capture.policy.capture_json import API_PATH, SCHEMA, to_json
from perfd.capture.policy.coordinator import CaptureCoordinator, check_profiles
from perfd.capture.policy.policy_events import ManualRequest
from perfd.capture.selection.rank_selection import JobView, RankView
from perfd.cli import main
from perfd.cli.aggregator_client import get
from perfd.cli.traces.analyze_capture import analyze
from perfd.config import CaptureProfile
from perfd.errors import ConfigError, PerfdError, StorageError
from perfd.model import (
    Alert,
    AlertState,
    CaptureCancel,
    CaptureFile,
    CaptureRequest,
    CaptureState,
    CaptureStatus,
)
from perfd.net.http import HttpServer

NOW = 1_700_000_000.0
JOB = JobView(job="llama", nodes=("a",), ranks=(RankView(rank=0, node="a"), RankView(rank=1, node="a")))


class Aggregator:
    """A coordinator behind HTTP, and agents that answer in one word."""

    def __init__(self):
        self.forget()
        self._lock = threading.Lock()
        self.server = HttpServer(
            "127.0.0.1:0",
            capture_routes(captures=self.list, start=self.start, cancel=self.cancel, link=self.link),
        )

    def forget(self):
        self.coordinator = CaptureCoordinator({"default": CaptureProfile()})
        self.answer = CaptureState.DONE
        self.sent = []
        self.file = "/x/r.nsys-rep"

    def link(self, capture_id, name):
        if name != "rank-0/node=n1/r.sqlite":
            raise StorageError(f"Capture {capture_id!r} has no stored file with this name.")
        return f"https://traces.example.org/{capture_id}/{name}?X-Amz-Signature=1", 300.0

    def list(self):
        with self._lock:
            return self.coordinator.captures()

    def start(self, body):
        request = ManualRequest(
            capture_id=body.id or "made-up",
            job=JOB,
            profile=body.profile,
            ranks=body.ranks,
            steps=body.steps,
            max_duration_s=body.max_duration_s,
        )
        with self._lock:
            capture = self.coordinator.on_request(request, NOW)
            self._deliver()
        return to_json(capture)

    def cancel(self, capture_id, reason):
        with self._lock:
            capture = self.coordinator.on_cancel(capture_id, reason, NOW)
            self._deliver()
        return to_json(capture)

    def _deliver(self):
        for node, message in self.coordinator.drain():
            self.sent.append(message)
            if isinstance(message, CaptureRequest) and self.answer is not None:
                status = CaptureStatus(
                    capture_id=message.capture_id,
                    state=self.answer,
                    time_unix_ns=1,
                    reason="Because.",
                    files=(CaptureFile(path=self.file, size_bytes=2**20),),
                )
                self.coordinator.on_status(node, status, NOW + 5)


@pytest.fixture(scope="module")
def one_aggregator():
    aggregator = Aggregator()
    yield aggregator
    aggregator.server.close()


@pytest.fixture
def aggregator(one_aggregator):
    one_aggregator.forget()
    return one_aggregator


@pytest.fixture
def perfd(aggregator, capsys):
    def call(*words, code=0):
        assert main(["capture", *words, "--aggregator", aggregator.server.address]) == code
        return capsys.readouterr().out

    return call


def test_a_stored_file_is_an_uncached_redirect_or_its_address(aggregator):
    files = "/captures/c1/files/rank-0/node%3Dn1/r.sqlite"
    request = urllib.request.Request(f"http://{aggregator.server.address}/api/v1{files}?link=1")
    with urllib.request.urlopen(request, timeout=20) as answer:
        assert answer.headers["Cache-Control"] == "no-store"
        found = json.load(answer)
    address = "https://traces.example.org/c1/rank-0/node=n1/r.sqlite?X-Amz-Signature=1"
    assert (found["url"], found["lifetime_s"]) == (address, 300.0)
    connection = http.client.HTTPConnection(aggregator.server.address, timeout=20)
    connection.request("GET", f"/api/v1{files}")
    answer = connection.getresponse()
    answer.read()
    assert (answer.status, answer.headers["Location"]) == (302, address)
    connection.request("GET", "/api/v1/captures/c1/files/other")
    missing = connection.getresponse()
    assert (missing.status, b"no stored file with this name" in missing.read()) == (404, True)
    connection.close()


def test_start_passes_on_what_was_asked_and_list_shows_it(perfd, aggregator):
    perfd("start", "llama", "--ranks", "1", "--steps", "3", "--duration", "9", "--id", "mine")
    (sent,) = aggregator.sent
    assert (sent.ranks, sent.steps, sent.max_duration_s) == ((1,), 3, 9.0)
    document = json.loads(perfd("list", "--json"))
    assert document["schema"] == "perfd.capture/1"
    assert [capture["id"] for capture in document["captures"]] == ["mine"]
    assert "1 done" in perfd("list")
    assert json.loads(perfd("list", "--json", "--job", "other"))["captures"] == []


@pytest.mark.parametrize(
    "wish",
    [
        {"steps": 0},
        {"steps": -5},
        {"max_duration_s": 0},
        {"max_duration_s": -1.0},
        {"steps": 1.5},
        {"ranks": 3},
    ],
)
def test_wishes_that_cannot_be_are_refused_by_name(aggregator, wish):
    connection = http.client.HTTPConnection(aggregator.server.address, timeout=30)
    connection.request("POST", API_PATH, json.dumps({"job": "llama", **wish}))
    answer = connection.getresponse()
    assert answer.status == 400
    assert f"at `$.{next(iter(wish))}`" in json.loads(answer.read())["error"]
    connection.close()
    assert aggregator.sent == []


def test_captures_of_servers_are_asked_for_apart(perfd, aggregator):
    perfd("start", "llama", "--id", "mine")

    def ids(kind):
        return [
            one["id"]
            for one in get(f"http://{aggregator.server.address}", f"{API_PATH}?kind={kind}", SCHEMA)[
                "captures"
            ]
        ]

    assert (ids("job"), ids("server")) == (["mine"], [])
    with pytest.raises(PerfdError, match="`kind` must be job or server, not 'x'"):
        ids("x")


def test_show_lists_every_rank_with_its_files(perfd):
    perfd("start", "llama", "--id", "mine")
    text = perfd("show", "mine")
    assert "mine: done" in text
    assert "rank 1 on a: done Because." in text
    assert "/x/r.nsys-rep (1.0 MB)" in text
    ranks = json.loads(perfd("show", "mine", "--json"))["capture"]["ranks"]
    assert ranks[0] == {
        "rank": 0,
        "node": "a",
        "state": "done",
        "reason": "Because.",
        "armed_unix_s": None,
        "started_unix_s": None,
        "stopped_unix_s": None,
        "ended_unix_s": 1e-9,
        "whole_steps": None,
        "files": [{"path": "/x/r.nsys-rep", "size_bytes": 2**20, "removed": None, "upload": None}],
    }


def test_the_same_id_again_captures_nothing_twice(perfd, aggregator):
    perfd("start", "llama", "--id", "mine")
    perfd("start", "llama", "--id", "mine")
    assert len(aggregator.sent) == 1


def test_start_with_wait_says_by_its_exit_code_whether_every_rank_is_done(perfd, aggregator):
    perfd("start", "llama", "--id", "good", "--wait")
    aggregator.answer = CaptureState.EMPTY
    perfd("start", "llama", "--id", "bad", "--wait", code=1)


def test_a_capture_that_was_refused_at_once_is_no_success(perfd):
    assert "No capture profile 'nosuch'" in perfd("start", "llama", "--profile", "nosuch", code=1)


def test_a_capture_that_is_under_way_is_a_success_without_wait(perfd, aggregator):
    aggregator.answer = None
    perfd("start", "llama")


def test_a_capture_that_there_is_not_is_named_with_where_to_look(aggregator, capsys):
    assert main(["capture", "show", "nosuch", "--aggregator", aggregator.server.address]) == 2
    assert "No capture 'nosuch'; see `perfd capture list`" in capsys.readouterr().err


def test_cancel_reaches_the_agents(perfd, aggregator):
    aggregator.answer = None
    perfd("start", "llama", "--id", "mine")
    perfd("cancel", "mine", "--reason", "enough")
    assert aggregator.sent[-1] == CaptureCancel(capture_id="mine", reason="enough")


@pytest.mark.parametrize(
    "words",
    [
        ("show", "nosuch"),
        ("show", "../jobs"),
        ("cancel", "nosuch"),
        ("start", "llama", "--ranks", "everyone"),
        ("start", "llama", "--id", "../x"),
    ],
)
def test_what_the_aggregator_refuses_is_one_sentence_and_exit_code_2(perfd, words, capsys):
    perfd(*words, code=2)


def test_an_aggregator_that_is_not_there_is_named(capsys):
    server = HttpServer("127.0.0.1:0", {})
    address = server.address
    server.close()
    assert main(["capture", "list", "--aggregator", address]) == 2
    assert f"No aggregator answers at http://{address}" in capsys.readouterr().err


def test_mistakes_in_profiles_are_all_named_with_their_path():
    profiles = {
        "a": CaptureProfile(tool="perf"),
        "b": CaptureProfile(ranks="nobody"),
        "c": CaptureProfile(max_duration_s=0),
    }
    with pytest.raises(ConfigError) as caught:
        check_profiles(profiles)
    message = str(caught.value)
    assert all(
        path in message
        for path in (
            "capture_profiles.a.tool",
            "capture_profiles.b.ranks",
            "capture_profiles.c.max_duration_s",
        )
    )


def fired(fired_at_unix_s: float, *, name: str = "Slow") -> Alert:
    return Alert(
        name=name,
        labels={"capture": "default", "perfd_job": "llama"},
        state=AlertState.FIRING,
        fired_at_unix_s=fired_at_unix_s,
    )


def test_of_two_decisions_that_an_alert_could_mean_the_last_is_reported():
    # The engine saw it end and begin again; the server that tells of it here did not.
    coordinator = CaptureCoordinator({"default": CaptureProfile(cooldown_s=0.0)})
    first = coordinator.on_alert(fired(NOW), JOB, NOW)
    second = coordinator.on_alert(fired(NOW + 60), JOB, NOW + 60)
    assert (first.state, second.state) == (None, CaptureState.REFUSED)
    assert coordinator.of_firing(fired(NOW), "llama").capture_id == second.capture_id
    assert coordinator.of_firing(fired(NOW + 600), "llama") is None
    assert coordinator.of_firing(fired(NOW), "other") is None


def test_what_an_alert_started_is_forgotten_with_its_captures():
    coordinator = CaptureCoordinator({"default": CaptureProfile()}, history=3)
    alerts = [fired(NOW + number, name=f"Slow{number % 2}") for number in range(50)]
    for alert in alerts:
        coordinator.on_alert(alert, JOB, alert.fired_at_unix_s)
    known = [capture["id"] for capture in coordinator.captures()]
    assert len(known) <= 4, "three, and the one that runs"
    assert [one for alert in alerts for one in coordinator.started_by(alert)] == known


def test_each_firing_of_an_alert_has_its_own_captures():
    coordinator = CaptureCoordinator({"default": CaptureProfile(cooldown_s=0.0)})
    first, again = fired(NOW), fired(NOW + 60)
    elsewhere = replace(first, labels={**first.labels, "rank": "3"})
    asked = [coordinator.on_alert(alert, JOB, alert.fired_at_unix_s) for alert in (first, again)]
    assert [coordinator.started_by(alert) for alert in (first, again, elsewhere)] == [
        *((capture.capture_id,) for capture in asked),
        (),
    ]


def trace():
    """A step with a kernel, as Kineto writes it."""
    events = [
        {
            "ph": "X",
            "cat": "user_annotation",
            "name": "ProfilerStep#1",
            "pid": 1,
            "tid": 1,
            "ts": 0,
            "dur": 100,
        },
        {"ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": 7, "ts": 10, "dur": 50}
        | {"args": {"device": 0, "stream": 7, "correlation": 1}},
    ]
    return json.dumps({"schemaVersion": 1, "traceEvents": events, "distributedInfo": {"rank": 0}})


def test_show_analyses_traces_that_lie_on_this_node(aggregator, capsys, tmp_path):
    aggregator.file = str(tmp_path / "rank0_1.pt.trace.json")
    (tmp_path / "rank0_1.pt.trace.json").write_text(trace())
    words = ["--aggregator", aggregator.server.address]
    assert main(["capture", "start", "llama", "--id", "c1", *words]) == 0
    assert main(["capture", "show", "c1", "--analyze", *words]) == 0
    assert json.loads((tmp_path / "perfd.trace.json").read_text())["schema"] == "perfd.trace/2"
    report = tmp_path / "perfd.report.html"
    assert "gemm" in report.read_text()
    assert report.stat().st_mode & 0o077 == 0


def test_a_rank_whose_trace_is_empty_keeps_no_other_from_being_analysed(tmp_path):
    whole, empty = tmp_path / "rank0.pt.trace.json", tmp_path / "rank1.pt.trace.json"
    whole.write_text(trace())
    empty.write_text('{"traceEvents": []}')
    states = ((whole, CaptureState.DONE), (empty, CaptureState.EMPTY))
    ranks = [{"state": state.value, "files": [{"path": str(path)}]} for path, state in states]

    written = analyze({"id": "c1", "ranks": ranks})

    assert [path.name for path in written] == ["perfd.trace.json", "perfd.report.html"]
    with pytest.raises(PerfdError, match="no GPU operation"):
        analyze({"id": "c1", "ranks": ranks[1:]})


def test_show_says_where_to_analyse_when_the_files_are_elsewhere(aggregator, capsys):
    words = ["--aggregator", aggregator.server.address]
    assert main(["capture", "start", "llama", "--id", "c1", *words]) == 0
    assert main(["capture", "show", "c1", "--analyze", *words]) == 2
    assert "run this on the node that has its files" in capsys.readouterr().err

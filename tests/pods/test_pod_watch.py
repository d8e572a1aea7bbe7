"""The watch of the API server, against a stand-in on loopback that speaks its protocol."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from queue import Queue
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from perfd_collectors.pods.api_access import ApiAccess, access_of_pod
from perfd_collectors.pods.job_reader import DeletedPod, JobCause, JobReader
from perfd_collectors.pods.namespace_reader import NamespaceFacts, NamespaceKey, NamespaceReader
from perfd_collectors.pods.pod_watch import PodWatch

from perfd.model import JobOutcome

TOKEN = "a-token"


def a_pod(name: str, version: int, phase: str = "Running") -> dict[str, Any]:
    return {
        "kind": "Pod",
        "metadata": {"name": name, "uid": name, "namespace": "research", "resourceVersion": str(version)},
        "status": {"phase": phase},
    }


class ApiServer:
    """Answers a list with `pods`, and a watch with what is put into `changes`; None ends the watch."""

    def __init__(self) -> None:
        self.pods: list[dict[str, Any]] = []
        self.changes: Queue[dict[str, Any] | bytes | None] = Queue()
        self.namespaces: dict[str, dict[str, Any]] = {}
        self.jobs: dict[str, dict[str, Any]] = {}
        self.forbidden = False
        self.asked: list[dict[str, str]] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                query = {key: value[0] for key, value in parse_qs(urlsplit(self.path).query).items()}
                outer.asked.append(query)
                allowed = self.headers["Authorization"] == f"Bearer {TOKEN}" and not outer.forbidden
                if not allowed:
                    self._send(403, {"kind": "Status", "code": 403, "message": "pods is forbidden"})
                elif self.path.startswith("/api/v1/namespaces/"):
                    found = outer.namespaces.get(self.path.rpartition("/")[2])
                    absent = {"kind": "Status", "code": 404, "message": "namespaces not found"}
                    self._send(404 if found is None else 200, {"metadata": found} if found else absent)
                elif self.path.startswith("/apis/batch/v1/namespaces/"):
                    outer.asked.append({"job": self.path})
                    said = outer.jobs.get(self.path.removeprefix("/apis/batch/v1/namespaces/"))
                    gone = {"kind": "Status", "code": 404, "message": "jobs not found"}
                    self._send(404 if said is None else 200, {"status": said} if said is not None else gone)
                elif "watch" in query:
                    self._watch()
                else:
                    self._send(200, {"metadata": {"resourceVersion": "10"}, "items": outer.pods})

            def _send(self, status: int, document: dict[str, Any]) -> None:
                content = json.dumps(document).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def _watch(self) -> None:
                self.send_response(200)
                self.end_headers()
                while (change := outer.changes.get()) is not None:
                    self.wfile.write(change if isinstance(change, bytes) else json.dumps(change).encode())
                    self.wfile.write(b"\n")
                    self.wfile.flush()

            def log_message(self, *_: object) -> None:
                """Silent."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def close(self) -> None:
        for _ in range(8):
            self.changes.put(None)
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture
def api() -> Iterator[ApiServer]:
    server = ApiServer()
    yield server
    server.close()


@pytest.fixture
def watch(api: ApiServer, tmp_path: Path) -> Iterator[PodWatch]:
    (tmp_path / "token").write_text(TOKEN + "\n")
    port = api.server.server_address[1]
    watch = PodWatch(
        ApiAccess(host="127.0.0.1", port=int(port), token_file=tmp_path / "token", ca_file=None), "node0"
    )
    yield watch
    watch.stop()


def until(true: Callable[[], bool]) -> None:
    """Wait for another thread; a minute is only reached when it never comes."""
    turn = threading.Event()
    for _ in range(6000):
        if true():
            return
        turn.wait(0.01)
    raise AssertionError("it never came")


def test_the_list_is_that_of_the_node(api: ApiServer, watch: PodWatch) -> None:
    api.pods = [a_pod("a", 1), a_pod("b", 2)]
    watch.start()
    until(lambda: watch.problem is None)
    assert sorted(watch.pods()) == ["a", "b"]
    assert api.asked[0]["fieldSelector"] == "spec.nodeName=node0"


def test_changes_follow_and_a_pod_that_is_gone_is_kept_as_it_ended(api: ApiServer, watch: PodWatch) -> None:
    api.pods = [a_pod("a", 1)]
    watch.start()
    api.changes.put({"type": "ADDED", "object": a_pod("b", 11)})
    until(lambda: "b" in watch.pods())
    api.changes.put({"type": "DELETED", "object": a_pod("a", 12, "Succeeded")})
    until(lambda: not watch.is_present("a"))
    assert watch.pods()["a"].end is not None
    watch.forget("b")
    watch.forget("a")
    assert sorted(watch.pods()) == ["b"]


def test_a_watch_goes_on_where_the_last_one_ended(api: ApiServer, watch: PodWatch) -> None:
    watch.start()
    # As an API server of 1.36 writes it.
    nothing = {"spec": {"containers": None}, "status": {}}
    bookmark = {"kind": "Pod", "metadata": {"resourceVersion": "41", "creationTimestamp": None}, **nothing}
    api.changes.put({"type": "BOOKMARK", "object": bookmark})
    api.changes.put(None)
    until(lambda: sum("watch" in query for query in api.asked) > 1)
    assert [query["resourceVersion"] for query in api.asked if "watch" in query][:2] == ["10", "41"]


def test_a_watch_that_is_too_old_begins_with_a_list(api: ApiServer, watch: PodWatch) -> None:
    watch.start()
    api.changes.put({"type": "ERROR", "object": {"kind": "Status", "code": 410, "message": "too old"}})
    until(lambda: sum("watch" not in query for query in api.asked) > 1)


@pytest.mark.parametrize("line", [b"no JSON", b"[]", b'{"type": 1}', b'{"type": "ADDED", "object": 7}'])
def test_what_it_cannot_read_costs_one_try(api: ApiServer, watch: PodWatch, line: bytes) -> None:
    api.pods = [a_pod("a", 1)]
    watch.start()
    until(lambda: watch.problem is None)
    api.changes.put(line)
    until(lambda: sum("watch" not in query for query in api.asked) > 1)
    until(lambda: watch.problem is None)
    assert sorted(watch.pods()) == ["a"]


def test_a_client_without_permission_is_given_the_reason(
    api: ApiServer, watch: PodWatch, caplog: pytest.LogCaptureFixture
) -> None:
    api.forbidden = True
    watch.start()
    until(lambda: "forbidden" in (watch.problem or ""))
    assert "pods is forbidden" in watch.problem  # type: ignore[operator]
    assert [record.levelname for record in caplog.records] == ["WARNING"]


@pytest.fixture
def namespaces(watch: PodWatch) -> Iterator[NamespaceReader]:
    reader = NamespaceReader(watch._access)
    yield reader
    reader.stop()


def test_namespaces_are_asked_for_when_they_are_wanted(api: ApiServer, namespaces: NamespaceReader) -> None:
    api.namespaces = {
        "a": {"name": "a", "labels": {"perfd/inject": "true"}},
        "b": {"name": "b", "annotations": {"owner": "x" * 10_000}},
    }
    namespaces.start()
    a, b = NamespaceKey("a"), NamespaceKey("b")
    namespaces.want(frozenset({a}))
    until(lambda: namespaces.found(a) is not None)
    assert namespaces.found(a) == NamespaceFacts(labels={"perfd/inject": "true"})
    assert namespaces.found(b) is None
    namespaces.want(frozenset({b}))
    until(lambda: namespaces.found(b) is not None)
    assert namespaces.found(b) == NamespaceFacts(annotations={"owner": "x" * 10_000})
    until(lambda: namespaces.found(a) is None)


@pytest.mark.parametrize("why", ["forbidden", "gone", "odd"])
def test_a_namespace_that_cannot_be_read_has_no_labels_and_is_said_once(
    api: ApiServer, namespaces: NamespaceReader, caplog: pytest.LogCaptureFixture, why: str
) -> None:
    api.forbidden = why == "forbidden"
    api.namespaces = {"odd": {"labels": 7}}
    namespaces.start()
    namespaces.want(frozenset({NamespaceKey(why)}))
    until(lambda: namespaces.found(NamespaceKey(why)) == NamespaceFacts())
    until(lambda: len(caplog.records) == 1)
    assert caplog.records[0].levelname == "WARNING"


@pytest.fixture
def jobs(watch: PodWatch) -> Iterator[JobReader]:
    reader = JobReader(watch._access)
    yield reader
    reader.stop()


def condition(kind: str, reason: str = "", status: str = "True") -> dict[str, Any]:
    return {"conditions": [{"type": kind, "reason": reason, "status": status}]}


@pytest.mark.parametrize(
    ("status", "outcome"),
    [
        (condition("Failed", "DeadlineExceeded"), JobOutcome.TIME_LIMIT),
        (condition("FailureTarget", "DeadlineExceeded"), JobOutcome.TIME_LIMIT),
        (condition("Failed", "BackoffLimitExceeded"), JobOutcome.FAILED),
        (condition("FailureTarget", "PodFailurePolicy"), JobOutcome.FAILED),
        (condition("SuccessCriteriaMet", "SuccessPolicy"), JobOutcome.COMPLETED),
        (condition("Suspended", "JobSuspended"), JobOutcome.PREEMPTED),
        (condition("Suspended", "JobResumed", "False"), None),
        ({"conditions": None}, None),
        ({}, None),
        (None, None),
    ],
)
def test_a_job_says_why_its_controller_deleted_a_pod(
    api: ApiServer, jobs: JobReader, caplog: pytest.LogCaptureFixture,
    status: dict[str, Any] | None, outcome: JobOutcome | None,
) -> None:  # fmt: skip
    if status is not None:
        api.jobs["research/jobs/pretrain"] = status
    pod = DeletedPod("research", "pretrain", "u", ended=False)
    jobs.start()
    jobs.want(frozenset({pod}))
    until(lambda: jobs.found(pod) is not None)
    assert jobs.found(pod) == JobCause(outcome)
    # A Job that is not there any more was deleted with its pods.
    assert caplog.records == []


def test_jobs_that_may_not_be_read_are_said_once_and_asked_for_once(
    api: ApiServer, jobs: JobReader, caplog: pytest.LogCaptureFixture
) -> None:
    api.forbidden = True
    pods = [DeletedPod("research", "pretrain", uid, ended=ended) for uid in "ab" for ended in (False, True)]
    jobs.start()
    jobs.want(frozenset(pods))
    until(lambda: all(jobs.found(pod) == JobCause() for pod in pods))
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert len(api.asked) == len(pods)


def test_a_pod_has_access_by_its_service_account(tmp_path: Path) -> None:
    environ = {"KUBERNETES_SERVICE_HOST": "10.96.0.1", "KUBERNETES_SERVICE_PORT": "443"}
    assert access_of_pod(environ, tmp_path) is None
    (tmp_path / "token").write_text(TOKEN)
    assert access_of_pod({}, tmp_path) is None
    found = access_of_pod(environ, tmp_path)
    assert found is not None
    assert (found.host, found.port, found.ca_file) == ("10.96.0.1", 443, tmp_path / "ca.crt")

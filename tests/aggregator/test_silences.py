"""Silencing an alert: the token, the request to Alertmanager, and a real Alertmanager."""

from __future__ import annotations

import json
import os
import shutil
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from perfd.aggregator.aggregator import Aggregator
from perfd.aggregator.web_api.silence_routes import PATH, silence_routes
from perfd.config import AggregatorConfig, AlertmanagerConfig, ExportersConfig
from perfd.errors import PerfdError
from perfd.exporters.alertmanager import create_silence, silence_body
from perfd.net import Request
from tests.support.services import alertmanager

LABELS = {"alertname": "Slow", "perfd_job": "llm", "empty": ""}
FIRING = {"state": "firing", "labels": LABELS}


def asked(
    method: str,
    body: Mapping[str, Any] | None = None,
    *,
    has_alertmanager: bool = True,
    has_token: bool = True,
    problem: str | None = None,
) -> tuple[int, dict[str, Any], list[Any]]:
    silenced: list[Any] = []

    def silence(*given: Any) -> str:
        if problem:
            raise PerfdError(problem)
        silenced.append(given)
        return "s-1"

    route = silence_routes(
        lambda: [FIRING, {"state": "resolved", "labels": {"alertname": "Old"}}],
        silence,
        has_alertmanager=has_alertmanager,
        has_token=has_token,
    )[PATH]
    answer = route(Request(method=method, path=PATH, rest="", query={}, body=json.dumps(body or {}).encode()))
    return answer.status, json.loads(answer.body), silenced


BODY = {"labels": LABELS, "duration_s": 3600, "by": "ann", "comment": "known"}


def test_a_firing_alert_is_silenced_with_all_its_labels() -> None:
    assert asked("GET")[1]["available"] is True
    status, document, silenced = asked("POST", BODY)
    assert (status, document["id"]) == (201, "s-1")
    assert silenced == [(LABELS, 3600.0, "ann", "known")]


@pytest.mark.parametrize(
    ("changes", "status"),
    [
        ({"labels": {"alertname": "Slow"}}, 404),
        ({"labels": {}}, 404),
        ({"labels": {"alertname": "Old"}}, 404),
        ({"duration_s": 0}, 400),
        ({"duration_s": 30 * 86_400 + 1}, 400),
        ({"by": ""}, 400),
        ({"more": 1}, 400),
    ],
)
def test_only_a_firing_alert_is_silenced(changes: Mapping[str, Any], status: int) -> None:
    assert asked("POST", {**BODY, **changes})[::2] == (status, [])


@pytest.mark.parametrize("lacks", ["has_alertmanager", "has_token"])
def test_without_an_alertmanager_or_a_token_no_alert_is_silenced(lacks: str) -> None:
    assert asked("GET", **{lacks: False})[1]["available"] is False
    status, document, silenced = asked("POST", BODY, **{lacks: False})
    assert (status, silenced) == (403, [])
    assert ("http_token_file" if lacks == "has_token" else "alertmanager.urls") in document["error"]


def test_a_refusal_by_alertmanager_is_an_error_in_a_sentence() -> None:
    assert asked("POST", BODY, problem="No Alertmanager accepted the silence: x.")[:2] == (
        503,
        {"error": "No Alertmanager accepted the silence: x."},
    )


def test_a_silence_matches_every_label_that_is_not_empty() -> None:
    body = silence_body(LABELS, 0.0, 60.0, by="ann", comment="known")
    assert [(one["name"], one["value"], one["isRegex"], one["isEqual"]) for one in body["matchers"]] == [
        ("alertname", "Slow", False, True),
        ("perfd_job", "llm", False, True),
    ]
    assert (body["startsAt"], body["endsAt"]) == (
        "1970-01-01T00:00:00.000+00:00",
        "1970-01-01T00:01:00.000+00:00",
    )


@pytest.fixture
def receiver() -> Iterator[tuple[str, list[tuple[str, Any]]]]:
    """A server that accepts silences like an Alertmanager: its address, and the requests it received."""
    got: list[tuple[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            got.append((self.path, json.loads(self.rfile.read(int(self.headers["Content-Length"])))))
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b'{"silenceID": "s-9"}')

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever).start()
    yield f"http://127.0.0.1:{server.server_address[1]}", got
    server.shutdown()
    server.server_close()


def test_the_first_alertmanager_that_answers_gets_the_silence(receiver: tuple[str, list[Any]]) -> None:
    url, got = receiver
    config = AlertmanagerConfig(urls=["http://127.0.0.1:9", f"{url}/api/v2/alerts"])
    assert create_silence(config, {"matchers": []}) == "s-9"
    assert got == [("/api/v2/silences", {"matchers": []})]
    with pytest.raises(PerfdError, match=r"127\.0\.0\.1:9: no answer"):
        create_silence(AlertmanagerConfig(urls=["http://127.0.0.1:9"]), {})


def test_the_aggregator_requires_its_token_for_a_silence(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("word\n")
    token.chmod(0o600)
    config = AggregatorConfig(
        listen="127.0.0.1:0", http_listen="127.0.0.1:0", http_token_file=str(token),
        exporters=ExportersConfig(alertmanager=AlertmanagerConfig(urls=["http://127.0.0.1:9"])),
    )  # fmt: skip
    aggregator = Aggregator(config, manual=True)
    aggregator.start()
    try:
        statuses = []
        for shown in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "Bearer word"}):
            headers = {"Content-Type": "application/json", **shown}
            address = f"http://{aggregator.http_address}{PATH}"
            request = urllib.request.Request(address, json.dumps(BODY).encode(), headers)
            with pytest.raises(urllib.error.HTTPError) as error:
                urllib.request.urlopen(request, timeout=20)
            statuses.append(error.value.code)
            error.value.close()
        # With the token, the request fails only because no such alert fires.
        assert statuses == [401, 401, 404]
    finally:
        aggregator.stop()


def test_the_audit_log_does_not_take_the_given_name_for_the_actor_of_a_silence(
    tmp_path: Path, receiver: tuple[str, list[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    token = tmp_path / "token"
    token.write_text("word\n")
    token.chmod(0o600)
    config = AggregatorConfig(
        listen="127.0.0.1:0", http_listen="127.0.0.1:0", http_token_file=str(token),
        audit_file=str(tmp_path / "audit"),
        exporters=ExportersConfig(alertmanager=AlertmanagerConfig(urls=[receiver[0]])),
    )  # fmt: skip
    aggregator = Aggregator(config, manual=True)
    monkeypatch.setattr(aggregator, "alerts", lambda: [FIRING])
    aggregator.start()
    try:
        headers = {"Content-Type": "application/json", "Authorization": "Bearer word"}
        body = json.dumps({**BODY, "by": "perfd"}).encode()
        request = urllib.request.Request(f"http://{aggregator.http_address}{PATH}", body, headers)
        with urllib.request.urlopen(request, timeout=20) as answer:
            assert answer.status == 201
    finally:
        aggregator.stop()
    lines = [json.loads(line) for line in (tmp_path / "audit").read_text().splitlines()]
    (said,) = [line for line in lines if line["action"] == "alert silenced"]
    assert (said["actor"], said["by"], said["silence"]) == ("request", "perfd", "s-9")


@pytest.mark.system
@pytest.mark.skipif(
    not shutil.which("prometheus-alertmanager") and not os.environ.get("CI"),
    reason="Alertmanager is not installed (Debian package `prometheus-alertmanager`)",
)
def test_a_real_alertmanager_takes_the_silence_and_suppresses_the_alert(tmp_path: Path) -> None:
    configuration = "route: {receiver: none}\nreceivers: [{name: none}]\n"
    with alertmanager(tmp_path, configuration) as server:
        alert = {"labels": {"alertname": "Slow", "perfd_job": "llm"}, "annotations": {}}
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(f"{server.url}/api/v2/alerts", json.dumps([alert]).encode(), headers)
        urllib.request.urlopen(request, timeout=20).close()
        body = silence_body(LABELS, time.time(), 600.0, by="ann", comment="known")
        silence = create_silence(AlertmanagerConfig(urls=[server.url]), body)
        while (found := server.get("/api/v2/alerts"))[0]["status"]["state"] != "suppressed":
            pass
        assert found[0]["status"]["silencedBy"] == [silence]
        (kept,) = server.get("/api/v2/silences")
        assert (kept["createdBy"], kept["comment"]) == ("ann", "known")

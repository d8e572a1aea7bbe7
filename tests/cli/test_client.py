"""A verb that asks an aggregator ends in time and says what is wrong, whatever answers."""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from perfd.cli import main
from perfd.cli.aggregator_client import ask
from perfd.errors import PerfdError
from perfd.net import HttpServer, Response, json_response

TIMEOUT_S = 0.3
_ASKING = (
    *("status", "status --cluster", "top --once", "watch", "nodes", "diagnose", "report --job x"),
    *("capture list", "capture show x", "capture start x", "capture cancel x"),
)


@contextmanager
def dripping(drop: bytes) -> Iterator[str]:
    """A server's address that sends this to one client until that is gone."""
    over = threading.Event()

    def serve() -> None:
        connection, _ = listener.accept()
        with connection:
            try:
                while not over.wait(0.02):
                    connection.sendall(drop)
            except OSError:
                return

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"127.0.0.1:{listener.getsockname()[1]}"
        finally:
            over.set()
            thread.join()


@pytest.mark.parametrize("scheme", ["http", "https"])
@pytest.mark.parametrize("drop", [b"", b"\x16"], ids=["silent", "dripping"])
def test_an_aggregator_that_does_not_get_done_is_given_up(scheme: str, drop: bytes) -> None:
    with dripping(drop) as address, pytest.raises(PerfdError, match="No aggregator answers at"):
        ask(f"{scheme}://{address}", "GET", "/api/v1/jobs", timeout_s=TIMEOUT_S)


def test_an_answer_that_drips_is_given_up() -> None:
    with dripping(b"HTTP/1.1 100 Continue\r\n\r\n") as address, pytest.raises(PerfdError, match="timed out"):
        ask(f"http://{address}", "GET", "/api/v1/jobs", timeout_s=TIMEOUT_S)


def test_a_name_that_no_resolver_answers_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    never = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: never.wait())
    try:
        with pytest.raises(PerfdError, match=r"the name aggregator\.example was not found in time"):
            ask("http://aggregator.example:9460", "GET", "/api/v1/jobs", timeout_s=TIMEOUT_S)
    finally:
        never.set()


@pytest.mark.parametrize("verb", _ASKING)
@pytest.mark.parametrize(
    ("document", "sentence"),
    [
        ({}, "is not a perfd aggregator; name one with --aggregator."),
        ({"status": "UP"}, "is not a perfd aggregator; name one with --aggregator."),
        ({"schema": "perfd.all/99", "jobs": {}}, "use the same version of perfd for both."),
    ],
)
def test_what_answers_with_something_else_is_called_so(
    verb: str, document: object, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    server = HttpServer("127.0.0.1:0", {"/api/v1/": lambda _: json_response(document)})
    try:
        assert main([*verb.split(), "--aggregator", f"http://{server.address}"]) == 2
    finally:
        server.close()
    assert capsys.readouterr().err.endswith(f"{sentence}\n")


_READS = {
    "/api/v1/jobs": "perfd.jobs/2",
    "/api/v1/jobs/": "perfd.summary/2",
    "/api/v1/fleet": "perfd.fleet/2",
    "/api/v1/nodes": "perfd.nodes/1",
    "/api/v1/group": "perfd.group/1",
    "/api/v1/captures": "perfd.capture/1",
    "/api/v1/captures/": "perfd.capture/1",
}
"""The schema of what the verbs ask for first, by its path."""


@pytest.mark.parametrize("verb", _ASKING)
@pytest.mark.parametrize(
    "content",
    [
        {},
        {"jobs": 5, "nodes": 5, "partitions": 5, "captures": 5, "capture": 5},
        {"jobs": [[]], "nodes": [[]], "partitions": [{}], "captures": [[]], "capture": {"state": "done"}},
    ],
    ids=["empty", "numbers", "lists"],
)
def test_contents_that_no_aggregator_of_this_version_has_are_called_so(
    verb: str, content: dict[str, object], capsys: pytest.CaptureFixture[str]
) -> None:
    routes = {
        path: lambda _, schema=schema: json_response({"schema": schema, **content})
        for path, schema in _READS.items()
    }
    server = HttpServer("127.0.0.1:0", routes)
    url = f"http://{server.address}"
    try:
        assert main([*verb.split(), "--aggregator", url]) == 2
    finally:
        server.close()
    said = capsys.readouterr().err
    assert url in said
    assert re.search(
        r"is not that of an aggregator of this version|the summary is not as perfd writes it", said
    )


@pytest.mark.parametrize("url", ["http://a b", "http://[::1", "http://a:99999", "http://"])
@pytest.mark.parametrize("verb", ["status --aggregator", "serving"])
def test_an_address_that_cannot_be_one_is_called_so(
    verb: str, url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*verb.split(), url]) == 2
    said = capsys.readouterr().err
    assert re.search(r"is not (an aggregator's|a server) address; write it as http://\S+\.$", said.rstrip())


def test_an_error_without_json_is_reported_with_its_status(capsys: pytest.CaptureFixture[str]) -> None:
    page = Response(status=503, body=b"no healthy upstream")
    server = HttpServer("127.0.0.1:0", {"/api/v1/": lambda _: page})
    try:
        assert main(["status", "--aggregator", server.address]) == 2
    finally:
        server.close()
    assert f"http://{server.address} (status 503) is not a perfd aggregator" in capsys.readouterr().err


def test_a_name_that_no_host_can_have_is_not_found(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "--aggregator", "http://a\udcff"]) == 2
    assert "perfd status: No aggregator answers at http://a" in capsys.readouterr().err

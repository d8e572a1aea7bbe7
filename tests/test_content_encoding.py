"""What the HTTP server compresses, and what it does not send again."""

from __future__ import annotations

import gzip
import http.client
import re
from collections.abc import Iterator
from importlib import resources

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfd.net.content_encoding import accepts_gzip, encode_body
from perfd.net.http import HttpServer, Request, Response
from perfd.web.page_routes import page_routes

ROWS = b'{"ranks": [%s]}\n' % b", ".join(b"%d" % rank for rank in range(1000))
FILES = sorted(entry.name for entry in (resources.files("perfd.web") / "static").iterdir())


class Once:
    """A stream of one piece."""

    def __iter__(self) -> Iterator[bytes]:
        yield b"data: " + b"x" * 1000 + b"\n\n"

    def close(self) -> None:
        """Nothing is open."""


@pytest.fixture(scope="module")
def server() -> Iterator[HttpServer]:
    def fail(_: Request) -> Response:
        raise RuntimeError

    routes = {
        **page_routes(lambda job: job == "llm"),
        "/api/rows": lambda _: Response(body=ROWS),
        "/api/few": lambda _: Response(body=b'{"ranks": []}\n'),
        "/api/missing": lambda _: Response(body=ROWS, status=404),
        "/api/packed": lambda _: Response(body=gzip.compress(ROWS), headers={"Content-Encoding": "gzip"}),
        "/api/file": lambda _: Response(body=ROWS, content_type="application/gzip"),
        "/api/stream": lambda _: Response(stream=Once(), content_type="text/event-stream"),
        "/api/fail": fail,
    }
    server = HttpServer("127.0.0.1:0", routes)
    yield server
    server.close()


def get(server: HttpServer, path: str, **headers: str) -> tuple[int, dict[str, str], bytes]:
    connection = http.client.HTTPConnection(server.address, timeout=10)
    try:
        connection.request(
            "GET", path, headers={name.replace("_", "-"): text for name, text in headers.items()}
        )
        answer = connection.getresponse()
        return answer.status, dict(answer.headers), answer.read()
    finally:
        connection.close()


@pytest.mark.parametrize(
    ("path", "status"),
    [("/", 200), ("/jobs/llm", 200), ("/jobs/none", 404), ("/api/rows", 200), ("/api/missing", 404)],
)
def test_pages_and_json_are_compressed_for_a_client_that_allows_it(
    server: HttpServer, path: str, status: int
) -> None:
    plain = get(server, path)
    packed = get(server, path, Accept_Encoding="gzip, deflate, br")

    assert plain[0] == packed[0] == status
    assert "Content-Encoding" not in plain[1]
    assert packed[1]["Content-Encoding"] == "gzip"
    assert plain[1]["Vary"] == packed[1]["Vary"] == "Accept-Encoding"
    assert gzip.decompress(packed[2]) == plain[2]
    assert len(packed[2]) == int(packed[1]["Content-Length"]) < len(plain[2])


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_a_browser_has_is_not_sent_again(server: HttpServer, name: str) -> None:
    path = f"/static/{name}"
    status, headers, body = get(server, path, Accept_Encoding="gzip")
    again = get(server, path, Accept_Encoding="gzip", If_None_Match=f'"other", {headers["ETag"]}')
    other = get(server, path, Accept_Encoding="gzip", If_None_Match='W/"other"')

    assert (status, again[0], again[2]) == (200, 304, b"")
    assert "Content-Length" not in again[1]
    assert again[1]["ETag"] == headers["ETag"]
    assert again[1]["Vary"] == "Accept-Encoding"
    # A 304 renews the headers of what the browser has: the policy must stay.
    assert again[1]["Content-Security-Policy"] == headers["Content-Security-Policy"]
    assert (other[0], other[2]) == (200, body)


def test_files_differ_in_their_tags(server: HttpServer) -> None:
    tags = {get(server, f"/static/{name}")[1]["ETag"] for name in FILES}
    assert len(tags) == len(FILES)
    assert all(re.fullmatch(r'W/"[0-9a-f]{32}"', tag) for tag in tags)


def test_a_connection_goes_on_after_an_answer_without_a_body(server: HttpServer) -> None:
    connection = http.client.HTTPConnection(server.address, timeout=10)
    try:
        connection.request("GET", "/static/main.js")
        first = connection.getresponse()
        body, tag = first.read(), first.headers["ETag"]
        connection.request("GET", "/static/main.js", headers={"If-None-Match": tag})
        second = connection.getresponse()
        assert (second.status, second.read()) == (304, b"")
        connection.request("GET", "/static/main.js")
        assert connection.getresponse().read() == body
    finally:
        connection.close()


@pytest.mark.parametrize("path", ["/api/few", "/api/file", "/api/stream", "/api/fail"])
def test_what_would_not_become_smaller_or_must_come_at_once_is_sent_as_it_is(
    server: HttpServer, path: str
) -> None:
    plain = get(server, path)
    asked = get(server, path, Accept_Encoding="gzip")

    assert "Content-Encoding" not in asked[1]
    assert asked[2] == plain[2]


def test_what_is_compressed_already_is_not_compressed_again(server: HttpServer) -> None:
    _, headers, body = get(server, "/api/packed", Accept_Encoding="gzip")
    assert headers["Content-Encoding"] == "gzip"
    assert gzip.decompress(body) == ROWS


def test_the_metrics_of_a_fleet_are_smaller_than_a_fast_level_makes_them() -> None:
    lines = (
        f'perfd_gpu_power_watts{{gpu="{n % 8}",node="n{n // 8}",perfd_job="j{n // 512}"}} {n * 7919 % 700}\n'
        for n in range(40_000)
    )
    body = "".join(lines).encode()
    sent = encode_body(body, 200, "text/plain; version=0.0.4", {}, {"accept-encoding": "gzip"})
    assert gzip.decompress(sent.body) == body
    assert len(sent.body) < min(len(body) / 10, len(gzip.compress(body, 1)))


@pytest.mark.parametrize(
    ("header", "allowed"),
    [
        ("gzip", True),
        ("deflate, GZIP ;q=0.5", True),
        ("*", True),
        ("br, *;q=0.1", True),
        ("", False),
        ("identity", False),
        ("deflate, br", False),
        ("gzip;q=0", False),
        ("gzip; q=0.000", False),
        ("gzip;q=0, *", False),
        ("*;q=0", False),
        ("xgzip", False),
        ("gzip;q=", True),
        ("gzip;q=0.001", True),
    ],
)
def test_gzip_is_allowed_by_name_or_by_star_unless_its_weight_is_zero(header: str, allowed: bool) -> None:
    assert accepts_gzip(header) is allowed


@given(st.text(), st.text())
def test_no_header_of_a_client_breaks_an_answer(encoding: str, tag: str) -> None:
    sent = encode_body(
        ROWS, 200, "text/html", {"ETag": '"a"'}, {"accept-encoding": encoding, "if-none-match": tag}
    )
    body = gzip.decompress(sent.body) if sent.headers.get("Content-Encoding") else sent.body
    assert (sent.status, body) in [(200, ROWS), (304, b"")]

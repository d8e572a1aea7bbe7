"""The page is served whole, with a strict policy, and nothing but the page is."""

from __future__ import annotations

import hashlib
import http.client
import json
import re
from collections.abc import Iterator
from importlib import resources
from pathlib import PurePosixPath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfd.net.http import HttpServer, Request
from perfd.web.page_routes import page_routes

ASSETS = sorted(entry.name for entry in (resources.files("perfd.web") / "static").iterdir())
VENDORED = json.loads((resources.files("perfd.web") / "vendor" / "vendored.cdx.json").read_text())
DIGESTS = {
    PurePosixPath(file["name"]).name: file["hashes"][0]["content"]
    for component in VENDORED["components"]
    for file in component["components"]
    if file["name"].endswith((".js", ".css"))
}
"""The digests of all code of others, as their packages have it."""
SVG = "http://www.w3.org/2000/svg"
TYPES = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}


@pytest.fixture(scope="module")
def server() -> Iterator[HttpServer]:
    server = HttpServer("127.0.0.1:0", page_routes(lambda job: job in {"llama", "a b/ü"}))
    yield server
    server.close()


def get(server: HttpServer, path: str) -> tuple[int, dict[str, str], str]:
    # Unlike urllib, this sends a path as it is.
    connection = http.client.HTTPConnection(server.address, timeout=10)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, dict(answer.headers), answer.read().decode()
    finally:
        connection.close()


@pytest.mark.parametrize("name", ASSETS)
def test_every_packaged_file_is_served_with_its_type_and_the_policy(server: HttpServer, name: str) -> None:
    status, headers, body = get(server, f"/static/{name}")

    assert status == 200
    assert body == (resources.files("perfd.web") / "static" / name).read_text()
    assert headers["Content-Type"].startswith(TYPES[name.rpartition(".")[2]])
    assert headers["X-Content-Type-Options"] == "nosniff"


@pytest.mark.parametrize(("name", "digest"), sorted(DIGESTS.items()))
def test_the_chart_library_is_served_as_its_authors_made_it(
    server: HttpServer, name: str, digest: str
) -> None:
    status, _, body = get(server, f"/static/{name}")

    assert status == 200
    assert hashlib.sha256(body.encode()).hexdigest() == digest


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/servers",
        "/agents",
        "/nodes",
        "/jobs/llama",
        "/jobs/nothing",
        "/static/main.js",
        "/static/nothing",
    ],
)
def test_the_policy_allows_no_inline_script_and_no_other_host(server: HttpServer, path: str) -> None:
    _, headers, _ = get(server, path)
    policy = dict(part.strip().split(" ", 1) for part in headers["Content-Security-Policy"].split(";"))

    assert policy["default-src"] == "'none'"
    assert set(policy.values()) == {"'none'", "'self'"}
    assert policy["frame-ancestors"] == "'none'"


def test_the_page_asks_for_nothing_that_is_not_packaged() -> None:
    for name in ASSETS:
        text = (resources.files("perfd.web") / "static" / name).read_text()
        # Perfetto opens only on a click; other addresses are those that sentences name.
        text = text.replace('const PERFETTO = "https://ui.perfetto.dev";', "")
        assert all("127.0.0.1" in found for found in re.findall(r"https?://[^\s\"']+", text.replace(SVG, "")))
        assert set(re.findall(r"/static/([\w.]+)", text)) <= {*ASSETS, *DIGESTS}
        assert set(re.findall(r'from "\./([\w.]+)"', text)) <= set(ASSETS)


def test_the_scripts_never_make_markup_of_text() -> None:
    for name in ASSETS:
        text = (resources.files("perfd.web") / "static" / name).read_text()
        assert not re.search(
            r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|Function\(", text
        )
        assert not re.search(r"<script(?![^>]*\bsrc=)|\son\w+=|<style|\sstyle=", text)


@pytest.mark.parametrize(
    "path",
    [
        "/static/../routes.py",
        "/static/..%2froutes.py",
        "/static/%2e%2e/routes.py",
        "/static//etc/passwd",
        "/static/",
        "/static/index.html/",
        "/static/__init__.py",
    ],
)
def test_a_path_that_leads_elsewhere_is_refused(server: HttpServer, path: str) -> None:
    status, _, body = get(server, path)

    assert (status, body) == (404, "There is no such file.\n")


@given(st.text())
def test_only_packaged_names_are_files(rest: str) -> None:
    handler = page_routes(lambda _: False)["/static/"]

    response = handler(Request(method="GET", path=f"/static/{rest}", rest=rest, query={}))

    assert (response.status == 200) == (rest in {*ASSETS, *DIGESTS})


@pytest.mark.parametrize("path", ["/jobs/llama", "/jobs/llama/captures", "/jobs/a%20b%2F%C3%BC"])
def test_a_known_job_has_the_page(server: HttpServer, path: str) -> None:
    status, headers, body = get(server, path)

    assert (status, headers["Content-Type"]) == (200, "text/html; charset=utf-8")
    # The same document, whose addresses lead up from a deeper path.
    depth = path.count("/") - 1
    assert body.count("../" * depth + "static/") == get(server, "/")[2].count("static/") > 0
    assert body.replace("../", "") == get(server, "/")[2]


@pytest.mark.parametrize("path", ["/jobs/nothing", "/jobs/", "/jobs/%ff", "/jobs/%3Cscript%3E"])
def test_an_unknown_job_has_the_page_that_says_so_and_status_404(server: HttpServer, path: str) -> None:
    status, _, body = get(server, path)

    assert status == 404
    # The same document, whose addresses lead up from a deeper path.
    depth = path.count("/") - 1
    assert body.count("../" * depth + "static/") == get(server, "/")[2].count("static/") > 0
    assert body.replace("../", "") == get(server, "/")[2]

"""`perfd mcp` as an assistant uses it: by the package's own client, against an aggregator that replayed."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import anyio
import httpx2
import pytest
from mcp import Client, MCPError, StdioServerParameters, stdio_client
from mcp.client.streamable_http import streamable_http_client

from perfd.cli import main
from perfd.recording.recording_format import find_recording
from perfd.session.replay_session import ReplayOptions, replay

GOLDEN = Path(__file__).parent / "golden"
PERFD = [sys.executable, "-m", "perfd", "mcp"]
CALLS = {
    "list_jobs": {},
    "get_summary": {"job": "dp4_slow2"},
    "get_findings": {"job": "dp4_slow2"},
    "get_steps": {"job": "dp4_slow2", "from_step": 5, "limit": 3},
    "get_ranks": {"job": "dp4_slow2", "order": "tensor_active_ratio", "limit": 2},
    "list_alerts": {"job": "dp4_slow2"},
    "list_captures": {},
    "compare_jobs": {"a": "dp4_slow2", "b": "dp4_slow2"},
    "explain_metric": {"name": "perfd_step_time_seconds"},
}
READING = {*CALLS, "get_capture", "get_trace"}


@pytest.fixture(scope="module")
def aggregator() -> Iterator[str]:
    """The address of an aggregator at the end of a replay."""
    ready, done = threading.Event(), threading.Event()
    found = []

    def hold(_, aggregator):
        found.append(aggregator.http_address)
        ready.set()
        done.wait()

    options = ReplayOptions(recording=find_recording("dp4_slow2"), http="127.0.0.1:0")
    thread = threading.Thread(target=replay, args=(options,), kwargs={"on_end": hold})
    thread.start()
    try:
        assert ready.wait(200)
        yield f"http://{found[0]}"
    finally:
        done.set()
        thread.join()


def environment() -> dict[str, str]:
    return {key: value for key, value in os.environ.items() if not key.startswith("PERFD_")}


@asynccontextmanager
async def over_stdio(url, *options):
    command = [*PERFD, "--aggregator", url, *options]
    parameters = StdioServerParameters(command=command[0], args=command[1:], env=environment())
    async with Client(stdio_client(parameters)) as client:
        yield client


@contextmanager
def served(url, *options) -> Iterator[str]:
    """The address of `perfd mcp --http`."""
    command = [*PERFD, "--aggregator", url, "--http", "127.0.0.1:0", *options]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment()) as process:
        try:
            line = process.stderr.readline()
            at = re.search(r"http://\S+", line)
            assert at, line
            yield at[0]
        finally:
            process.terminate()
            process.wait()


@asynccontextmanager
async def over_http(address, token=None):
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    async with (
        httpx2.AsyncClient(headers=headers, timeout=200) as http,
        Client(streamable_http_client(address, http_client=http)) as client,
    ):
        yield client


def stable(document):
    """The answer without times, which depend on when the recording is replayed."""
    if isinstance(document, dict) and "rows" in document:
        timed = [at for at, column in enumerate(document["columns"]) if "1970" in column["unit"]]
        rows = [[None if at in timed else cell for at, cell in enumerate(row)] for row in document["rows"]]
        return {**document, "rows": rows}
    return document


def test_answers_over_stdio_are_those_of_the_golden_files(aggregator):
    async def ask():
        async with over_stdio(aggregator) as client:
            tools = (await client.list_tools()).tools
            assert {tool.name for tool in tools} == READING
            assert all(tool.annotations.read_only_hint for tool in tools)
            results = {name: await client.call_tool(name, given) for name, given in CALLS.items()}
            prompt = await client.get_prompt("job_report", {"job": "dp4_slow2"})
            refused = [
                await client.call_tool("get_summary", {"job": "nope\x1b"}),
                await client.call_tool("get_summary", {"job": ["a"]}),
                await client.call_tool("get_trace", {"id": "nope"}),
                await client.call_tool("start_capture", {"job": "dp4_slow2"}),
            ]
            with pytest.raises(MCPError, match="The argument job is missing"):
                await client.get_prompt("job_report", {})
            return results, prompt, refused

    results, prompt, refused = anyio.run(ask)
    assert "## Recommendations" in prompt.messages[0].content.text
    for result in refused:
        assert result.is_error
        (text,) = [content.text for content in result.content]
        assert text.isprintable()
        assert text.endswith((".", ")"))
    for name, result in results.items():
        assert not result.is_error, result.content
        assert json.loads(result.content[0].text) == result.structured_content
        assert len(result.content[0].text) < 6000, "answers are small by default"
        text = json.dumps(stable(result.structured_content), indent=1, ensure_ascii=False) + "\n"
        if os.environ.get("WRITE_GOLDEN"):
            GOLDEN.mkdir(exist_ok=True)
            (GOLDEN / f"{name}.json").write_text(text)
        assert text == (GOLDEN / f"{name}.json").read_text()


def test_over_http_the_token_decides_what_is_offered(aggregator, tmp_path):
    for name in ("read", "capture"):
        (tmp_path / name).write_text(f"{name}-word")
    options = ("--read-token-file", str(tmp_path / "read"), "--capture-token-file", str(tmp_path / "capture"))

    async def ask(address):
        async with over_http(address, "read-word") as client:
            reading = {tool.name for tool in (await client.list_tools()).tools}
            jobs = await client.call_tool("list_jobs")
            refused = await client.call_tool("start_capture", {"job": "dp4_slow2"})
        async with over_http(address, "capture-word") as client:
            capturing = {tool.name for tool in (await client.list_tools()).tools}
            started = await client.call_tool("start_capture", {"job": "nope"})
        async with httpx2.AsyncClient(timeout=200) as http:
            stranger = await http.post(address, json={})
            wrong = await http.post(address, json={}, headers={"Authorization": "Bearer other"})
        return reading, jobs, refused, capturing, started, stranger, wrong

    with served(aggregator, *options) as address:
        reading, jobs, refused, capturing, started, stranger, wrong = anyio.run(ask, address)
    assert reading == READING
    assert jobs.structured_content["rows"][0][0] == "dp4_slow2"
    assert refused.is_error
    assert refused.content[0].text == "There is no tool start_capture for this client."
    assert capturing == {*READING, "start_capture"}
    # The aggregator itself refuses a job that it does not know.
    assert started.is_error
    assert "nope" in started.content[0].text
    assert (stranger.status_code, wrong.status_code) == (401, 401)
    assert stranger.json() == {"error": "Show a bearer token of the aggregator's API."}


def test_over_http_a_page_under_another_name_is_refused(aggregator):
    async def ask(address):
        async with over_http(address) as client:
            jobs = await client.call_tool("list_jobs")
        async with httpx2.AsyncClient(timeout=200) as http:
            return jobs, [
                await http.post(address, json={}, headers={"Host": "evil.example"}),
                await http.post(address, json={}, headers={"Origin": "http://evil.example"}),
            ]

    with served(aggregator) as address:
        jobs, refused = anyio.run(ask, address)
    assert not jobs.is_error
    assert [response.status_code for response in refused] == [421, 403]


@pytest.mark.slow
def test_over_http_silent_connections_keep_nobody_out(aggregator):
    """More of them than there are places: silent from the start, within a head, within a body."""
    head = b"POST /mcp HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: 9\r\n"
    parts = (b"", head, head + b"\r\n{")

    async def ask(address):
        async with over_http(address) as client:
            return await client.call_tool("list_jobs")

    with served(aggregator) as address, ExitStack() as silent:
        url = urlsplit(address)
        for part in parts * 40:
            connection = silent.enter_context(socket.create_connection((url.hostname, url.port)))
            connection.sendall(part)
        assert not anyio.run(ask, address).is_error


def test_without_an_aggregator_the_sentence_says_so():
    async def ask():
        async with over_stdio("http://127.0.0.1:1") as client:
            return await client.call_tool("list_jobs")

    result = anyio.run(ask)
    assert result.is_error
    assert result.content[0].text.startswith("No aggregator answers at http://127.0.0.1:1: ")


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--http", "0.0.0.0:0"], "0.0.0.0:0 is not loopback"),
        (["--http", "nonsense"], "'nonsense' is not an address"),
        (["--capture-token-file", "/nonexistent"], "Cannot read the token in /nonexistent"),
    ],
)
def test_what_cannot_be_served_is_refused_at_the_start(options, sentence, capsys):
    assert main(["mcp", *options]) == 2
    assert capsys.readouterr().err.startswith(f"perfd mcp: {sentence}")


def test_without_the_package_the_sentence_says_what_to_install(monkeypatch, capsys):
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    assert main(["mcp"]) == 2
    assert capsys.readouterr().err == "perfd mcp: This needs the package mcp: pip install 'perfd[mcp]'.\n"

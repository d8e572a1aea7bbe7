"""`perfd aggregator`, `status` and `top`, and the shipped configuration."""

import io
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from urllib.request import urlopen

import pytest
import yaml
from aggregator.support import START_S, aggregator, gpus, place, step
from rich.console import Console

from perfd.cli import main
from perfd.cli.aggregator_client import get, url_of
from perfd.cli.tables.status_tables import job_table, render
from perfd.config import AggregatorConfig, load
from perfd.model import JobDescription, ParallelLayout, SampleTable, Scope, ServerInfo
from tests.support.fake_agent import FakeAgent

DEFAULTS = Path(__file__).parents[2] / "deploy" / "aggregator.yaml"


def keys_of(kind):
    """Every key of a configuration type, nested ones with dots."""
    for name in kind.__struct_fields__:
        inner = getattr(kind(), name)
        if hasattr(inner, "__struct_fields__"):
            yield from (f"{name}.{key}" for key in keys_of(type(inner)))
        else:
            yield name


def test_the_shipped_configuration_has_every_key_at_its_default():
    assert load(DEFAULTS, AggregatorConfig) == AggregatorConfig()
    written = yaml.safe_load(DEFAULTS.read_text())
    for key in keys_of(AggregatorConfig):
        place_of_key = written
        for part in key.split("."):
            assert part in place_of_key, key
            place_of_key = place_of_key[part]


def test_a_misspelled_key_is_named_with_its_path(capsys, tmp_path):
    path = tmp_path / "aggregator.yaml"
    path.write_text("history: {retention: 3}")
    assert main(["aggregator", "--config", str(path)]) == 2
    assert "retention" in capsys.readouterr().err


def start(*arguments):
    """The verb as a process, and the addresses that it serves."""
    process = subprocess.Popen(
        [sys.executable, "-m", "perfd", "aggregator", "--log-json", *arguments],
        stderr=subprocess.PIPE,
        text=True,
    )
    return process, json.loads(process.stderr.readline())


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_process_serves_until_it_is_terminated(number, tmp_path):
    history = tmp_path / "h.sqlite"
    config = tmp_path / "aggregator.yaml"
    config.write_text(f"history: {{path: {history}}}")
    listen = ("--listen", "127.0.0.1:0", "--http", "127.0.0.1:0")
    process, line = start("--config", str(config), *listen)
    try:
        with FakeAgent(line["agents"]) as agent:
            agent.hello()
            agent.send(step(1))
        process.send_signal(number)
        assert process.wait(50) == 0
    finally:
        process.kill()
        process.communicate()
    assert history.exists()


def test_the_process_ends_while_pages_and_agents_are_connected():
    process, line = start("--listen", "127.0.0.1:0", "--http", "127.0.0.1:0")
    try:
        with FakeAgent(line["agents"]) as agent, urlopen(f"http://{line['http']}/api/v1/events") as viewer:
            agent.hello()
            agent.send(step(1))
            assert viewer.readline().startswith(b"retry:")
            process.send_signal(signal.SIGTERM)
            assert process.wait(50) == 0
            assert b"event: round" in viewer.read()
    finally:
        process.kill()
        process.communicate()


@pytest.mark.slow
def test_a_process_that_is_killed_has_what_it_acknowledged(tmp_path):
    config = tmp_path / "aggregator.yaml"
    config.write_text(f"history: {{path: {tmp_path / 'h.sqlite'}}}")
    arguments = ("--config", str(config), "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0")
    for life in (1, 2):
        process, line = start(*arguments)
        try:
            with FakeAgent(line["agents"]) as agent:
                assert agent.hello(first_sequence=life).last_sequence == life - 1
                agent.sequence = life - 1
                agent.send(step(life))
            steps = get(f"http://{line['http']}", "/api/v1/jobs/llm/steps", "perfd.steps/1")["steps"]
            assert [found["step"] for found in steps] == list(range(1, life + 1))
        finally:
            process.kill()
            process.communicate()


@pytest.mark.parametrize("options", [["--listen", "{}", "--http", "127.0.0.1:0"], ["--http", "{}"]])
def test_a_port_in_use_is_one_sentence_and_exit_code_2(options, capsys):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        arguments = [one.format(address) for one in options]
        assert main(["aggregator", "--listen", "127.0.0.1:0", *arguments]) == 2
    said = capsys.readouterr().err
    assert said.startswith("perfd aggregator: Cannot listen on")
    assert said.count("\n") == 1


@pytest.fixture
def served():
    with aggregator(http_listen="127.0.0.1:0") as running, FakeAgent(running.grpc_address) as agent:
        agent.hello()
        layout = ParallelLayout(world_size=4, pp=2, tp=1, dp=2)
        agent.send(JobDescription(job="llm", framework="megatron-lm", parallel=layout, train_steps=100))
        agent.send(*(step(number, time_s=number, tokens_per_s=1000.0) for number in range(1, 20)))
        agent.send(place(0, 0), *(gpus(time_s, sm_active_ratio=0.5) for time_s in range(20)))
        running.tick()
        agent.send(
            ServerInfo(server="h:30000", engine="sglang", model="Qwen/Qwen3-32B"),
            SampleTable(
                scope=Scope.SERVER,
                times_unix_ns=[round(START_S * 1e9)],
                entities=["h:30000"],
                columns={"up": [1.0], "tpot_p50_s": [0.012]},
            ),
        )
        yield running


def test_status_shows_what_serves(served, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")
    assert main(["status", "--aggregator", served.http_address]) == 0
    (line,) = (line for line in capsys.readouterr().out.splitlines() if "h:30000" in line)
    assert line.split()[:4] == ["node0", "h:30000", "sglang", "Qwen/Qwen3-32B"]
    assert "12.0 ms" in line


def test_status_shows_a_job_in_a_line(served, capsys):
    assert main(["status", "--aggregator", served.http_address]) == 0
    shown = capsys.readouterr().out
    for word in ("llm", "19/100", "1000.0 ms", "1,000", "1 of 1 agents connected"):
        assert word in shown


def test_a_list_without_captures_says_so(served, capsys):
    assert main(["capture", "list", "--aggregator", served.http_address]) == 0
    assert capsys.readouterr().out == "No capture yet.\n"


def test_status_as_json_is_versioned(served, capsys):
    assert main(["status", "--aggregator", f"http://{served.http_address}/", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == "perfd.status/1"
    assert document["jobs"][0]["steps"]["last"] == 19
    assert document["agents"][0]["node"] == "node0"
    assert document["alerts"] == []
    assert [server["engine"] for server in document["servers"]] == ["sglang"]


def test_top_looks_once_when_asked(served, capsys):
    assert main(["top", "--aggregator", served.http_address, "--once"]) == 0
    assert "megatron-lm" in capsys.readouterr().out


def test_top_leaves_when_q_is_pressed(served):
    read, write = os.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "perfd", "top", "--aggregator", served.http_address, "--interval", "0.1"],
        stdin=write,
        stdout=write,
        stderr=write,
        env={**os.environ, "TERM": "xterm"},
    )
    os.close(write)
    seen = b""
    try:
        while b"megatron" not in seen:
            seen += os.read(read, 4096)
        os.write(read, b"q")
        while True:
            try:
                if not os.read(read, 4096):
                    break
            except OSError:
                break
        assert process.wait(50) == 0
    finally:
        process.kill()
        process.wait()
        os.close(read)


@pytest.mark.parametrize("verb", ["status", "top"])
@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("127.0.0.1:1", "No aggregator answers"),
        ("ftp://x", "is not an aggregator's address"),
        ("http://127.0.0.1:99999", "is not an aggregator's address"),
        ("http://[::1", "is not an aggregator's address"),
    ],
)
def test_without_an_aggregator_the_answer_is_one_sentence(verb, address, words, capsys):
    assert main([verb, "--aggregator", address]) == 2
    said = capsys.readouterr().err
    assert words in said
    assert said.count("\n") == 1


def test_something_else_that_answers_is_distinguished_from_an_aggregator(served, capsys):
    assert main(["status", "--aggregator", f"{served.http_address}/nowhere"]) == 2
    assert "There is nothing at /nowhere/api/v1/jobs" in capsys.readouterr().err


def test_the_aggregators_address_comes_from_argument_then_environment_then_default():
    class Arguments:
        aggregator = None

    assert url_of(Arguments, {}) == "http://127.0.0.1:9460"
    assert url_of(Arguments, {"PERFD_AGGREGATOR_URL": "https://x"}) == "https://x"
    Arguments.aggregator = "host:1"
    assert url_of(Arguments, {"PERFD_AGGREGATOR_URL": "https://x"}) == "http://host:1"


def drawn(what, width=80):
    console = Console(width=width, file=io.StringIO(), force_terminal=False)
    console.print(what)
    return console.file.getvalue()


def job(**changes):
    """An entry of perfd.jobs/2 in which nothing is known, but for `changes`."""
    return {
        "name": "llm",
        "framework": None,
        "steps": {"count": 0, "last": None},
        "gpus": [],
        "bottleneck": {"kind": "unknown", "name": "unknown", "culprits": [], "evidence": []},
        **changes,
    }


def test_nothing_known_is_drawn_as_nothing_known():
    shown = drawn(render([job()])) + drawn(job_table([job()]))
    assert "llm" in shown
    assert "0.0" not in shown
    assert "None" not in shown


def test_everything_fits_in_80_columns():
    gpu = {"node": "a-node-with-a-rather-long-name", "gpu": "0/3", "rank": 12345, "sm_active_ratio": 1.2}
    stages = [{"stage": number, "stall_ratio": 0.5} for number in range(16)]
    everything = job(
        name="a-job-with-a-name-as-long-as-some-schedulers-make-them-0123456789",
        framework="megatron-bridge",
        parallel={"world_size": 16384, "tp": 8, "pp": 16, "dp": 128, "cp": 1, "ep": 64},
        steps={"count": 9, "last": 1234567},
        train_steps=9999999,
        step_time_s={"median": 123.4},
        efficiency={"tokens_per_s": 123456789.0, "model_flops_per_s_per_gpu": 4.5e14, "mfu_ratio": 0.456},
        communication={"share_ratio": 0.5},
        pipeline={"stall_ratio": 0.5, "bubble_theory_ratio": 0.4, "stages": stages},
        gpus=[{**gpu, "tensor_active_ratio": 0.0, "dram_active_ratio": 0.5, "power_w": 700.0}] * 40,
        bottleneck={
            "kind": "pipeline_imbalance",
            "name": "pipeline imbalance",
            "culprits": [{"kind": "stage", "id": 3}],
            "evidence": ["A sentence that is long enough to be wrapped because it goes on and on."],
        },
        ended=True,
    )
    alerts = [{"name": "A", "job": "llm", "state": "firing", "annotations": {"summary": "word " * 30}}]
    shown = drawn(render([everything], alerts, played=(1.0, 2.0)))
    assert max(map(len, shown.splitlines())) <= 80
    assert "and 24 more GPUs" in shown
    assert "stage 3" in shown
    assert max(map(len, drawn(job_table([everything], alerts)).splitlines())) <= 80


def test_text_of_a_job_is_shown_as_it_is_and_not_as_markup():
    shown = drawn(render([job(name="[red]x[/red]")], [{"name": "[b]y", "state": "firing"}]))
    assert "[red]x[/red]" in shown
    assert "[b]y" in shown
    assert "[red]x[/red]" in drawn(job_table([job(name="[red]x[/red]")]))


def test_a_job_that_no_agent_reports_is_marked_until_it_ended():
    assert "(silent)" in drawn(job_table([job(silent_s=31.0)]))
    assert "(silent)" not in drawn(job_table([job(silent_s=29.0), job(silent_s=31.0, ended=True)]))

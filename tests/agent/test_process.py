from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from agent import process

from perfd.agent.spool.spool import Spool
from perfd.model import Event, JobOutcome, TrainingStep
from tests.support.fake_aggregator import FakeAggregator

Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def aggregator() -> Iterator[FakeAggregator]:
    with FakeAggregator() as fake:
        yield fake


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts agents and leaves none behind."""
    with ExitStack() as stack:

        def starter(*arguments: str, code: str | None = None) -> subprocess.Popen[str]:
            agent = stack.enter_context(process.start(tmp_path, *arguments, code=code))
            stack.callback(agent.kill)
            return agent

        yield starter


def received_steps(aggregator: FakeAggregator) -> list[int]:
    records = [record for batch in aggregator.batches for record in batch.records]
    return [record.step for record in records if isinstance(record, TrainingStep)]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_agent_once_everything_is_sent(
    aggregator: FakeAggregator, tmp_path: Path, start: Start, number: signal.Signals
) -> None:
    agent = start("--config", str(process.configuration(tmp_path, aggregator.address)))
    assert aggregator.wait_for(lambda: len(received_steps(aggregator)) >= 5)
    aggregator.hold_acks()
    agent.send_signal(number)
    aggregator.release_acks()
    output, errors = agent.communicate()
    assert (agent.returncode, output) == (0, "")
    assert [line.split(" ", 2)[2] for line in errors.splitlines()] == [
        f"info: The aggregator is connected. address={aggregator.address}"
    ]
    steps = received_steps(aggregator)
    assert steps == list(range(1, len(steps) + 1))
    assert [goodbye.reason for goodbye in aggregator.goodbyes] == ["The agent was stopped by a signal."]
    spool = Spool(tmp_path / "spool", max_bytes=1 << 20)
    assert spool.stats().batches == 0
    assert spool.last_sequence == aggregator.sequences()[-1]
    spool.close()


def test_a_stopped_agent_sends_last_how_the_job_ended(
    aggregator: FakeAggregator, tmp_path: Path, start: Start
) -> None:
    end = tmp_path / "end"
    config = str(process.configuration(tmp_path, aggregator.address))
    agent = start("--config", config, "--job-end", str(end))
    assert aggregator.wait_for(lambda: bool(received_steps(aggregator)))
    end.write_text("exit_code=3")
    agent.send_signal(signal.SIGTERM)
    agent.communicate()
    *_, last = (record for batch in aggregator.batches for record in batch.records)
    assert isinstance(last, Event)
    assert (last.job, last.outcome, last.values) == ("j1", JobOutcome.FAILED, {"exit_code": 3.0})


def test_a_killed_agent_says_no_goodbye(aggregator: FakeAggregator, tmp_path: Path, start: Start) -> None:
    agent = start("--config", str(process.configuration(tmp_path, aggregator.address)))
    assert aggregator.wait_for(lambda: bool(received_steps(aggregator)))
    agent.kill()
    agent.communicate()
    assert aggregator.goodbyes == []


def test_a_killed_agent_goes_on_where_it_was(
    aggregator: FakeAggregator, tmp_path: Path, start: Start
) -> None:
    config = str(process.configuration(tmp_path, aggregator.address))
    for life in range(1, 4):
        agent = start("--config", config)
        assert aggregator.wait_for(
            lambda enough=life * 5: len(aggregator.batches) >= enough  # type: ignore[misc]
        )
        agent.kill()
        agent.communicate()
    assert aggregator.sequences() == list(range(1, len(aggregator.batches) + 1))
    assert len({hello.agent_id for hello in aggregator.hellos}) == 1


_RUN_AND_LIST_MODULES = """
import json, sys
from perfd.cli import main
status = main(["agent", *sys.argv[1:]])
print(json.dumps({"status": status, "modules": sorted({name.partition(".")[0] for name in sys.modules})}))
"""


def test_a_running_agent_has_imported_nothing_large(
    aggregator: FakeAggregator, tmp_path: Path, start: Start
) -> None:
    config = process.configuration(tmp_path, aggregator.address, collectors={}, listen="127.0.0.1:0")
    agent = start("--config", str(config), code=_RUN_AND_LIST_MODULES)
    assert aggregator.wait_for(lambda: len(received_steps(aggregator)) >= 3)
    agent.send_signal(signal.SIGTERM)
    output, errors = agent.communicate()
    found = json.loads(output)
    assert found["status"] == 0, errors
    large = {"numpy", "wandb", "pydantic", "pandas", "torch", "rich", "promql_parser"}
    assert large & set(found["modules"]) == set()
    assert "perfd_collectors" in found["modules"]


def test_an_unknown_key_is_named_with_its_path(tmp_path: Path) -> None:
    config = tmp_path / "agent.yaml"
    config.write_text("uplink: {adress: 127.0.0.1:1}\n")
    code, output, errors = process.run(tmp_path, "--config", str(config))
    assert (code, output) == (2, "")
    sentence = "`adress` is not a key of `uplink`; did you mean `address`?"
    assert errors == f"perfd agent: {config}:1:10: {sentence}\n"


def test_a_second_agent_on_a_node_names_the_first(
    aggregator: FakeAggregator, tmp_path: Path, start: Start
) -> None:
    config = str(process.configuration(tmp_path, aggregator.address))
    first = start("--config", config)
    assert aggregator.wait_for(lambda: bool(aggregator.batches))
    code, _, errors = process.run(tmp_path, "--config", config)
    first.terminate()
    first.communicate()
    assert code == 2
    assert errors.startswith(f"perfd agent: Another agent (process {first.pid}) uses the spool in ")
    assert len(errors.splitlines()) == 1


def test_arguments_win_over_the_file_and_state_goes_where_the_environment_says(
    aggregator: FakeAggregator, tmp_path: Path, start: Start
) -> None:
    config = str(process.configuration(tmp_path, "127.0.0.1:1", spool={}))
    agent = process.start(
        tmp_path, "--config", config, "--aggregator", aggregator.address, "--node", "n2", "--job", "j2"
    )
    assert aggregator.wait_for(lambda: bool(received_steps(aggregator)))
    agent.terminate()
    agent.communicate()
    assert aggregator.hellos[0].node == "n2"
    assert {
        step.job for batch in aggregator.batches for step in batch.records if isinstance(step, TrainingStep)
    } == {"j2"}
    assert (tmp_path / "state" / "perfd" / "n2" / "spool.sqlite").exists()


def test_once_prints_what_the_collectors_saw(tmp_path: Path) -> None:
    config = str(process.configuration(tmp_path, "127.0.0.1:1"))
    code, output, errors = process.run(tmp_path, "--config", config, "--once", "--json")
    document = json.loads(output)
    assert (code, errors) == (0, "")
    assert (document["schema"], document["node"], document["job"]) == ("perfd.agent_once/1", "n1", "j1")
    assert [(one["name"], one["success"]) for one in document["collectors"]] == [("counting", True)]
    assert [(record["kind"], record["step"]) for record in document["records"]] == [
        ("TrainingStep", 1),
        ("TrainingStep", 2),
    ]
    assert not (tmp_path / "spool").exists()


def test_once_without_json_is_for_people(tmp_path: Path) -> None:
    config = str(process.configuration(tmp_path, "127.0.0.1:1"))
    code, output, _ = process.run(tmp_path, "--config", config, "--once")
    assert code == 0
    assert output.splitlines() == [
        "node n1",
        "collector counting: works",
        "2 other records; --json shows them",
    ]


def test_once_shows_readings_as_a_table(tmp_path: Path) -> None:
    config = str(process.configuration(tmp_path, "127.0.0.1:1", collectors={"host": {}}))
    code, output, errors = process.run(tmp_path, "--config", config, "--once")
    assert code == 0, errors
    _, _, node = output.partition("\nnode\n")
    rows = [line for line in node.partition("\nnic")[0].splitlines() if line.startswith("  ")]
    assert {"memory_total_bytes", "load_1min_processes"} <= {row.split()[0] for row in rows}
    assert all(float(row.split()[1]) >= 0 for row in rows)
    assert len({len(row) for row in rows}) == 1, "values are not in one column"


def test_logs_can_be_json_lines(tmp_path: Path, start: Start) -> None:
    config = str(process.configuration(tmp_path, "127.0.0.1:1"))
    agent = start("--config", config, "--log-json")
    assert agent.stderr is not None
    line = json.loads(agent.stderr.readline())
    agent.terminate()
    agent.communicate()
    assert (line["level"], line["address"]) == ("warning", "127.0.0.1:1")
    assert line["message"] == "The aggregator is unreachable: batches wait in the spool."

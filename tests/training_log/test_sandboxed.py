"""Training logs that a process without rights parses."""

from contextlib import closing
from dataclasses import fields, replace
from pathlib import Path

import pytest
from perfd_collectors.training_log import SPEC, TrainingLogOptions
from perfd_collectors.training_log.collector import create
from perfd_collectors.training_log.sandboxed import SandboxedTrainingLog

from perfd.clock import VirtualClock
from perfd.collector import Settings
from perfd.errors import ConfigError, SandboxError
from perfd.model import LogProgress, TrainingStep
from perfd.testing.collector_contract import check_collector

FIXTURES = Path(__file__).parents[1] / "fixtures/training_log"
LOGS = sorted(FIXTURES.glob("*.log"))
INSIDE = Settings(node="n", job="j", clock=VirtualClock(1_800_000_000_000_000_000))
SANDBOXED = replace(INSIDE, sandboxed=True)


def records(settings, *paths, **options):
    options = TrainingLogOptions(paths=tuple(map(str, paths)), **options)
    with closing(create(options, settings)) as collector:
        # Once: by the sandbox's clock, a line may settle before a second time.
        return [as_read(record) for record in collector.collect()]


def as_read(record):
    """Without the times of reading, which differ."""
    times = {"time_unix_ns", "last_line_unix_ns"} & {field.name for field in fields(record)}
    return replace(record, **dict.fromkeys(times))


def test_its_records_are_those_of_a_parser_in_the_agent():
    assert records(SANDBOXED, *LOGS) == records(INSIDE, *LOGS) != []


def test_it_keeps_the_contract_of_a_collector():
    options = TrainingLogOptions(paths=(str(LOGS[0]),))
    assert check_collector(SPEC, SANDBOXED, options=options)


def test_patterns_and_mistakes_in_the_options_are_those_of_a_parser_in_the_agent(tmp_path):
    (tmp_path / "log").write_text("at 1 took 0.5\nat 2 took 0.5\n")
    options = {"patterns": (r"at (?P<step>\d+) took (?P<step_time_s>[\d.]+)",)}
    read = records(SANDBOXED, tmp_path / "log", **options)
    assert [record.step for record in read if isinstance(record, TrainingStep)] == [1, 2]
    with pytest.raises(ConfigError, match="not a regular expression"):
        create(TrainingLogOptions(paths=("x",), patterns=("(",)), SANDBOXED)


def test_after_the_process_ended_the_logs_are_read_anew_but_not_at_once():
    clock = VirtualClock(1_800_000_000_000_000_000)
    settings = replace(SANDBOXED, clock=clock)
    with closing(create(TrainingLogOptions(paths=(str(LOGS[0]),)), settings)) as collector:
        assert isinstance(collector, SandboxedTrainingLog)
        (before,) = (one for one in collector.collect() if isinstance(one, LogProgress))
        collector._sandbox._process.kill()
        collector._sandbox._process.wait()
        for _ in range(2):
            with pytest.raises(SandboxError, match="started again"):
                collector.collect()
        clock.advance(30.0)
        (after,) = (one for one in collector.collect() if isinstance(one, LogProgress))
        assert after.lines == before.lines > 0

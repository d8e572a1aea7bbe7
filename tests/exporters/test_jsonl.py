"""A line of JSON for each round."""

import json
from contextlib import ExitStack, closing

import pytest
from aggregator.support import aggregator, step
from exporters.rounds import job_round
from exporters.support import alert, context

from perfd.config import ExportersConfig, JsonLinesConfig
from perfd.errors import ConfigError
from perfd.exporters.exporter import Round
from perfd.exporters.jsonl import JsonLinesExporter
from tests.support.fake_agent import FakeAgent


@pytest.fixture
def exporter():
    """Makes exporters, which are closed at the end."""
    with ExitStack() as made:

        def make(path, given=None, **options):
            config = JsonLinesConfig(path=str(path), **options)
            return made.enter_context(closing(JsonLinesExporter(config, given or context())))

        yield make


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_the_aggregator_writes_a_line_for_each_round(tmp_path):
    path = tmp_path / "rounds.jsonl"
    exporters = ExportersConfig(jsonl=JsonLinesConfig(path=str(path)))
    with aggregator(exporters=exporters) as running:
        with FakeAgent(running.grpc_address) as agent:
            agent.hello()
            agent.send(*(step(number, time_s=1_700_000_000.0 + number) for number in range(1, 9)))
        running.tick()
        page = running.page().decode()
    line = lines(path)[-2]
    assert line["schema"] == "perfd.round/1"
    assert line["jobs"][0]["job"] == "llm"
    assert line["jobs"][0]["numbers"]["step_time_s"] == 1.0
    assert 'perfd_exporter_lost_total{exporter="jsonl"} 0' in page


def test_a_line_holds_steps_alerts_and_only_what_is_known(exporter, tmp_path):
    path = tmp_path / "new" / "rounds.jsonl"
    tested = exporter(path)
    job = job_round(7, attempt=2, mfu_ratio=0.4, tokens_per_s=float("nan"))
    tested.export(Round(time_unix_s=3.0, jobs=[job], changes=[alert(perfd_job="llm", resolved=2.0)]))
    [line] = lines(path)
    [found] = line["jobs"]
    assert (found["step"], found["attempt"], found["ended"]) == (7, 2, False)
    assert found["numbers"]["mfu_ratio"] == 0.4
    assert "tokens_per_s" not in found["numbers"]
    assert [(one["name"], one["resolved_at_unix_s"]) for one in line["alerts"]] == [("Slow", 2.0)]


def test_a_full_file_is_set_aside_in_place_of_an_older_one(exporter, tmp_path):
    path = tmp_path / "rounds.jsonl"
    tested = exporter(path, max_bytes=200)
    for second in range(9):
        tested.export(Round(time_unix_s=float(second)))
    tested.close()
    assert sorted(file.name for file in tmp_path.iterdir()) == ["rounds.jsonl", "rounds.jsonl.1"]
    assert all(file.stat().st_size <= 200 for file in tmp_path.iterdir())
    assert lines(path)[-1]["time_unix_s"] == 8.0


def test_a_file_that_cannot_be_written_is_counted_and_tried_again_with_the_next_round(exporter, tmp_path):
    given = context()
    path = tmp_path / "logs" / "rounds.jsonl"
    tested = exporter(path, given, max_bytes=100)
    tested.export(Round(time_unix_s=0.0))
    # The place of the file that is set aside is taken by a directory, so it cannot be.
    (path.parent / "rounds.jsonl.1").mkdir()
    with pytest.raises(OSError, match=r"rounds\.jsonl"):
        tested.export(Round(time_unix_s=1.0))
    (path.parent / "rounds.jsonl.1").rmdir()
    tested.export(Round(time_unix_s=2.0))
    assert (given.tally.sent, given.tally.lost) == (2, 1)
    assert [line["time_unix_s"] for line in lines(path)] == [2.0]


def test_a_path_that_cannot_be_used_is_reported_at_the_start(exporter, tmp_path):
    with pytest.raises(ConfigError, match="cannot write"):
        exporter(tmp_path)

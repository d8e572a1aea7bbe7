"""No exporter can slow or break the aggregator, or another exporter."""

import threading

import pytest
from exporters.support import alert, until

from perfd.exporters.exporter import ExporterTally, Round
from perfd.exporters.exporter_runner import ExporterRunner


class Gate:
    """An exporter that waits until it is let through."""

    def __init__(self):
        self.rounds = []
        self.entered = threading.Event()
        self.open = threading.Event()

    def export(self, round_):
        self.entered.set()
        assert self.open.wait(30)
        self.rounds.append(round_)

    def close(self):
        pass


class Broken:
    """An exporter that raises, whatever is asked of it."""

    def __init__(self, error):
        self.error = error

    def export(self, round_):
        raise self.error

    def close(self):
        raise self.error


def test_a_slow_exporter_drops_the_oldest_rounds_and_keeps_their_alerts():
    gate = Gate()
    runner = ExporterRunner("gate", gate, ExporterTally(), max_queued=2)
    runner.offer(Round(time_unix_s=0.0))
    assert gate.entered.wait(30)
    for second in range(1, 6):
        runner.offer(Round(time_unix_s=float(second), changes=[alert(fired=float(second))]))
    gate.open.set()
    assert runner.close(30)
    assert runner.status().dropped_rounds == 3
    assert [round_.time_unix_s for round_ in gate.rounds] == [0.0, 4.0, 5.0]
    assert [one.fired_at_unix_s for round_ in gate.rounds for one in round_.changes] == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("error", [ValueError("no"), SystemExit(1), KeyboardInterrupt()])
def test_an_exporter_that_raises_is_counted_reported_once_and_goes_on(error, caplog):
    runner = ExporterRunner("broken", Broken(error), ExporterTally())
    for second in range(3):
        runner.offer(Round(time_unix_s=float(second)))
    until(lambda: runner.status().rounds == 3)
    assert len(caplog.records) == 1
    assert runner.close(30)
    assert (runner.status().rounds, runner.status().failed_rounds) == (3, 3)


def test_one_that_hangs_is_left_behind_at_the_end():
    gate = Gate()
    runner = ExporterRunner("gate", gate, ExporterTally())
    runner.offer(Round(time_unix_s=0.0))
    assert gate.entered.wait(30)
    assert not runner.close(0.0)
    gate.open.set()
    assert runner.close(30)


def test_rounds_after_the_end_are_not_taken():
    gate = Gate()
    gate.open.set()
    runner = ExporterRunner("gate", gate, ExporterTally())
    assert runner.close(30)
    runner.offer(Round(time_unix_s=0.0))
    assert gate.rounds == []

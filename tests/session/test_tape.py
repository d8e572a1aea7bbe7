from __future__ import annotations

import json
from pathlib import Path

import pytest

from perfd.clock import VirtualClock
from perfd.collector import CollectorSpec, Options, Settings
from perfd.model import Event, EventKind
from perfd.session.recording.best_effort_recorder import BestEffortRecorder, tapped

EVENT = Event(kind=EventKind.JOB_STARTED, time_unix_ns=1, message="started")


class Repeating:
    """A collector that returns the same records each time."""

    def __init__(self, records) -> None:
        self.records = records
        self.closed = False

    def collect(self):
        return self.records

    def close(self) -> None:
        self.closed = True


def test_a_tapped_collector_returns_what_it_did_and_shows_it():
    inner = Repeating([EVENT])
    seen = []
    spec = tapped(
        CollectorSpec(name="events", options=Options, create=lambda *_: inner, interval_s=0.5),
        lambda name, records: seen.append((name, records)),
    )
    collector = spec.create(Options(), Settings(node="n", job="j"))
    assert (spec.name, spec.interval_s) == ("events", 0.5)
    assert collector.collect() == [EVENT]
    inner.records = []
    assert collector.collect() == []
    assert seen == [("events", [EVENT])]
    collector.close()
    assert inner.closed


def test_a_tape_writes_a_recording(tmp_path):
    said: list[str] = []
    tape = BestEffortRecorder(
        tmp_path / "rec", job="j", node="n", clock=VirtualClock(10**9), start_unix_ns=10**9, say=said.append
    )
    tape.add_log(b"line\n", 2 * 10**9)
    tape.add_records([EVENT])
    tape.close()
    tape.close()
    manifest = json.loads((tmp_path / "rec/recording.json").read_bytes())
    assert [stream["kind"] for stream in manifest["streams"]] == ["training-log", "records"]
    assert said == []


def test_a_tape_that_cannot_be_written_says_so_once_and_swallows_the_rest(tmp_path):
    (tmp_path / "something").touch()
    said: list[str] = []
    tape = BestEffortRecorder(
        tmp_path, job="j", node="n", clock=VirtualClock(), start_unix_ns=0, say=said.append
    )
    tape.add_log(b"line\n", 1)
    tape.add_records([EVENT])
    tape.describe([EVENT])
    tape.close()
    assert len(said) == 1
    assert "is not empty" in said[0]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full, a disk that is always full")
def test_a_disk_that_fills_up_ends_the_recording_and_nothing_else(tmp_path):
    said: list[str] = []
    tape = BestEffortRecorder(
        tmp_path / "rec", job="j", node="n", clock=VirtualClock(), start_unix_ns=0, say=said.append
    )
    tape.add_log(b"first\n", 1)
    (tmp_path / "rec/n/records.bin").symlink_to("/dev/full")
    tape.add_records([EVENT])
    tape.add_log(b"lost\n", 2)
    tape.close()
    assert len(said) == 1
    assert "No space left on device" in said[0]
    assert (tmp_path / "rec/n/stdout.log").read_bytes() == b"first\n"

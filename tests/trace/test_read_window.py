"""Exports too large to be read whole: the middle of them is, and it is said."""

from __future__ import annotations

import pytest

from perfd.trace.diagnosis.trace_analysis import analyse
from perfd.trace.readers.nsys import read_window
from perfd.trace.readers.trace_files import read_traces
from perfd.trace.tables import tables_of
from tests.support.traces import COMPUTE, NsysExport

STEP_NS, KERNELS, STEPS = 1_000_000, 8, 30
RECORDS = STEPS * (2 * KERNELS + 4) + 3 * 4
"""A kernel and its launch each, and a range per step, which weighs as four."""


@pytest.fixture
def capture(tmp_path):
    export = NsysExport(tmp_path / "capture.sqlite")
    for step in range(STEPS):
        begin = step * STEP_NS
        for at in range(KERNELS):
            start = begin + 20_000 + at * 100_000
            export.kernel(COMPUTE, start, start + 50_000 + at, launched=start - 4_000)
        export.nvtx(f"step {step}", begin, begin + STEP_NS - 1)
    # A domain of ranges, named before all of them.
    export.nvtx("loader", -5, None, kind=75, domain=3)
    export.nvtx("batch", 15 * STEP_NS, 15 * STEP_NS + 10, domain=3)
    export.nvtx("early", 10, 20, domain=3)
    return export.close()


def test_the_middle_of_a_large_export_has_the_steps_that_the_whole_has(capture, monkeypatch):
    whole = analyse(read_traces([capture])).ranks[0]
    monkeypatch.setattr(read_window, "MAX_RECORDS", RECORDS // 3)
    (trace,) = read_traces([capture], detailed=True)
    rank = analyse([trace]).ranks[0]
    kept = {one.step: one for one in rank.steps}
    assert 7 <= len(kept) <= 10
    assert set(kept) <= set(range(9, 21))
    assert list(kept.values()) == [one for one in whole.steps if one.step in kept]
    assert rank.timeline.complete
    (note,) = trace.notes
    assert "million records, more than are read at once: read were those from" in note
    (table,) = tables_of([trace], ["kernels"])
    counted = dict(zip([column.name for column in table.columns], table.rows[0], strict=True))["count"]
    assert counted == len(trace.operations) < STEPS * KERNELS // 2


def test_an_export_of_as_many_records_as_are_read_at_once_is_read_whole(capture, monkeypatch):
    monkeypatch.setattr(read_window, "MAX_RECORDS", RECORDS)
    (trace,) = read_traces([capture])
    assert len(trace.operations) == STEPS * KERNELS
    assert not trace.notes
    monkeypatch.setattr(read_window, "MAX_RECORDS", RECORDS - 1)
    (trace,) = read_traces([capture])
    assert len(trace.operations) < STEPS * KERNELS


def test_names_of_domains_are_known_within_the_window_too(capture, monkeypatch):
    monkeypatch.setattr(read_window, "MAX_RECORDS", RECORDS // 3)
    (trace,) = read_traces([capture])
    assert [(phase.name, phase.domain) for phase in trace.phases] == [("batch", "loader")]

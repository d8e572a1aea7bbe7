"""PyTorch's traces too large to be read whole: their beginning is, and it is said."""

from __future__ import annotations

import random

import pytest

from perfd.trace.diagnosis.trace_analysis import analyse
from perfd.trace.readers import kineto_reader
from tests.support.traces import MATMUL, Op, kineto, write_json

STEPS, KERNELS, STEP_US = 40, 20, 10_000.0
RECORDS = STEPS * (2 * KERNELS + 1)


@pytest.fixture(params=["in order", "last first", "any order"])
def trace(request, tmp_path):
    operations = [
        Op(
            MATMUL,
            step * STEP_US + 100 + at * 200,
            step * STEP_US + 200 + at * 200 + at,
            launched=step * STEP_US + 50 + at,
        )
        for step in range(STEPS)
        for at in range(KERNELS)
    ]
    steps = {n: (n * STEP_US, (n + 1) * STEP_US - 1) for n in range(STEPS)}
    content = kineto(operations, steps=steps)
    events = content["traceEvents"]
    if request.param == "last first":
        events.reverse()
    elif request.param == "any order":
        random.Random(1).shuffle(events)
    return write_json(tmp_path / "rank-0.json", content)


@pytest.mark.parametrize("detailed", [False, True])
def test_the_beginning_of_a_large_trace_has_the_steps_that_the_whole_has(trace, detailed, monkeypatch):
    (whole,) = kineto_reader.read(trace, 4096)
    monkeypatch.setattr(kineto_reader, "MAX_RECORDS", RECORDS // 2)
    monkeypatch.setattr(kineto_reader, "_SAMPLED", 3)
    (part,) = kineto_reader.read(trace, 4096, detailed=detailed)
    assert STEPS * KERNELS // 8 < len(part.operations) <= STEPS * KERNELS // 2
    assert list(part.operations.start_ns) == list(whole.operations.start_ns[: len(part.operations)])
    assert any("more events than are read at once" in note for note in part.notes)
    full, cut = (analyse([kineto_reader.replace(one, rank=0)]).ranks[0].steps for one in (whole, part))
    assert 4 <= len(cut) < len(full)
    assert list(cut) == list(full[: len(cut)])


def test_a_trace_of_as_many_events_as_are_read_at_once_is_read_whole(trace, monkeypatch):
    monkeypatch.setattr(kineto_reader, "MAX_RECORDS", RECORDS)
    (part,) = kineto_reader.read(trace, 4096)
    assert len(part.operations) == STEPS * KERNELS
    assert not part.notes


def test_events_that_all_begin_at_once_end_the_reading(tmp_path, monkeypatch):
    operations = [Op(MATMUL, 5.0, 6.0) for _ in range(500)]
    path = write_json(tmp_path / "rank-0.json", kineto(operations))
    monkeypatch.setattr(kineto_reader, "MAX_RECORDS", 100)
    with pytest.raises(kineto_reader.TraceError, match="no GPU operation"):
        kineto_reader.read(path, 4096)

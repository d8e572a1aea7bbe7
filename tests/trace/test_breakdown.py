"""Where a rank's time went, against a sweep over every begin and end."""

from __future__ import annotations

import gzip
import json
import sqlite3
import tempfile
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfd.trace.breakdown import phase_rows
from perfd.trace.breakdown.rank_breakdown import RankBreakdown, RankTimeline
from perfd.trace.readers import kineto_reader as reader
from perfd.trace.readers.trace_files import read_traces
from tests.support.examples import examples
from tests.support.traces import COMPUTE, COPY, MATMUL, NCCL, Call, Op, kineto, write_json

_KINDS = {COMPUTE: "compute", MATMUL: "compute", NCCL: "communication", COPY: "memory"}
_LIMIT = 0.001
"""Of the window: how far the two computations may be apart."""


def swept(intervals: Iterable[tuple[int, int, str]], start: int, end: int) -> dict[str, int]:
    """Where a window's time goes, by walking over every begin and end: the independent computation.

    `intervals` are (start, end, "compute" | "communication" | "memory").
    """
    edges = []
    for interval_start, interval_end, kind in intervals:
        begin, finish = max(interval_start, start), min(interval_end, end)
        if finish > begin:
            edges += [(begin, 1, kind), (finish, -1, kind)]
    active = {"compute": 0, "communication": 0, "memory": 0}
    found = dict.fromkeys(
        ("compute", "communication", "memory", "exposed_communication", "exposed_memory", "idle"), 0
    )
    now = start
    for time, change, kind in [*sorted(edges, key=lambda edge: edge[0]), (end, 0, "compute")]:
        length = time - now
        for name, count in active.items():
            if count:
                found[name] += length
        if not any(active.values()):
            found["idle"] += length
        elif active["memory"] and not active["compute"]:
            found["exposed_memory"] += length
        elif active["communication"] and not active["compute"]:
            found["exposed_communication"] += length
        active[kind] += change
        now = time
    return found


def _check(found: RankBreakdown, expected: dict[str, int]) -> None:
    span_ns = found.span_s * 1e9
    pairs = {
        "compute": found.compute_s,
        "communication": found.communication_s,
        "memory": found.memory_s,
        "exposed_communication": found.exposed_communication_s,
        "exposed_memory": found.exposed_memory_s,
        "idle": found.uncovered_s,
    }
    for name, seconds in pairs.items():
        assert seconds * 1e9 == pytest.approx(expected[name], abs=_LIMIT * span_ns), name


def _timeline(trace: object) -> RankTimeline:
    with tempfile.TemporaryDirectory() as folder:
        return RankTimeline(reader.read(write_json(Path(folder, "t.json"), trace))[0])


_OPERATIONS = st.lists(
    st.builds(
        lambda name, start, length: Op(name=name, start=start, end=start + length),
        st.sampled_from(list(_KINDS)),
        st.integers(0, 60),
        st.integers(0, 25),
    ),
    min_size=1,
    max_size=20,
)


@settings(max_examples=examples(60), deadline=None)
@given(_OPERATIONS, st.integers(0, 30), st.integers(1, 60))
def test_generated_operations_give_what_a_sweep_finds(operations, begin, length):
    steps = {4: (begin, begin + length), 5: (begin + length, begin + 2 * length)}

    timeline = _timeline(kineto(operations, steps=steps))

    intervals = [(int(op.start * 1000), int(op.end * 1000), _KINDS[op.name]) for op in operations]
    windows = [(begin, begin + 2 * length), *steps.values()]
    for found, (start, end) in zip([timeline.whole(), *timeline.by_step()], windows, strict=True):
        _check(found, swept(intervals, start * 1000, end * 1000))
        parts = found.compute_s + found.exposed_memory_s + found.exposed_communication_s + found.idle_s
        assert parts == pytest.approx(found.span_s)


@pytest.mark.slow
def test_the_real_kineto_set_gives_what_a_sweep_finds(shared):
    for path, trace in zip(shared.kineto, read_traces(shared.kineto), strict=True):
        events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
        steps = [e for e in events if e.get("cat") == "user_annotation" and "ProfilerStep" in e["name"]]
        intervals = [
            (_ns(e["ts"]), _ns(e["ts"]) + _ns(e["dur"]), _kind(e))
            for e in events
            if e.get("cat") in {"kernel", "gpu_memcpy", "gpu_memset"}
        ]
        timeline = RankTimeline(trace)
        windows = [(_ns(e["ts"]), _ns(e["ts"]) + _ns(e["dur"])) for e in steps]
        assert len(timeline.by_step()) == len(windows) == 2
        for found, (start, end) in zip(timeline.by_step(), sorted(windows), strict=True):
            _check(found, swept(intervals, start, end))


def test_the_real_nsys_capture_gives_what_a_sweep_finds(shared, tmp_path):
    database = tmp_path / "capture.sqlite"
    database.write_bytes(gzip.decompress(shared.nsys.read_bytes()))
    connection = sqlite3.connect(database)
    for trace in read_traces([shared.nsys]):
        kernels = connection.execute(
            "SELECT start, end, value LIKE '%nccl%' FROM CUPTI_ACTIVITY_KIND_KERNEL "
            "JOIN StringIds ON id = shortName WHERE deviceId = ?",
            (trace.device,),
        )
        intervals = [(a, b, "communication" if nccl else "compute") for a, b, nccl in kernels]
        for table in ("MEMCPY", "MEMSET"):
            rows = connection.execute(
                f"SELECT start, end, 'memory' FROM CUPTI_ACTIVITY_KIND_{table} WHERE deviceId = ?",
                (trace.device,),
            )
            intervals += rows.fetchall()
        start, end = min(one[0] for one in intervals), max(one[1] for one in intervals)
        _check(RankTimeline(trace).whole(), swept(intervals, start, end))
    connection.close()


def _ns(microseconds: float) -> int:
    return round(microseconds * 1000)


def _kind(event: dict) -> str:
    if event["cat"] != "kernel":
        return "memory"
    return "communication" if event["name"].startswith("nccl") else "compute"


def test_a_late_launch_is_launch_idle_and_a_quick_one_is_other():
    operations = [
        Op(COMPUTE, 0, 100, launched=-10),
        # Launched 50 us after the first ended; began 8 us later.
        Op(COMPUTE, 158, 200, launched=150),
        # Launched long before: the gap is not the host's.
        Op(COMPUTE, 230, 300, launched=180),
    ]

    found = _timeline(kineto(operations, steps={1: (0, 300)})).whole()

    assert found.idle.launch_s == pytest.approx(50e-6)
    assert found.idle.other_s == pytest.approx(38e-6)
    assert found.idle.sync_s == 0
    assert found.idle.host_s == 0


def test_waiting_for_a_gpu_that_has_nothing_to_do_is_sync_idle():
    operations = [Op(COMPUTE, 0, 100, launched=-10), Op(COMPUTE, 400, 500, launched=390)]
    calls = [Call("cudaStreamSynchronize", 20, 130)]

    found = _timeline(kineto(operations, calls=calls, steps={1: (0, 500)})).whole()

    assert found.idle.sync_s == pytest.approx(30e-6)
    assert found.idle.launch_s == pytest.approx(260e-6)
    # It waited for 110 us, so that it is late by as much, and by 180 us because it did something else.
    assert found.idle.after_sync_s == pytest.approx(80e-6)
    assert found.idle.host_s == pytest.approx(180e-6)
    assert found.idle.launch_s + found.idle.sync_s + found.idle.other_s == pytest.approx(found.idle_s)


def test_what_the_host_waited_for_makes_it_late_beyond_the_next_small_kernel():
    operations = [
        Op(COMPUTE, 0, 500, launched=-10),
        # After the wait one small kernel comes at once, and the rest later.
        Op(COMPUTE, 520, 522, launched=512),
        Op(COMPUTE, 600, 900, launched=590),
        Op(COMPUTE, 900, 950, launched=595),
    ]
    calls = [Call("cudaStreamSynchronize", 100, 510)]

    found = _timeline(kineto(operations, calls=calls, steps={1: (0, 950)})).whole()

    # Without 400 us of waiting the host had been ahead all the time.
    assert found.idle.after_sync_s == pytest.approx(found.idle.launch_s)
    assert found.idle.sync_s == pytest.approx(10e-6)
    assert found.idle.host_s == 0


def test_a_host_that_waits_shortly_is_late_by_no_more_than_that():
    """Each step the host waits for 30 us of work and then needs 200 us itself: 30 are saved at most."""
    operations, calls = [], []
    for step in range(10):
        begin = 300 * step
        operations.append(Op(COMPUTE, begin, begin + 80, launched=begin - 10))
        calls.append(Call("cudaStreamSynchronize", begin + 50, begin + 82))
    found = _timeline(kineto(operations, calls=calls, steps={1: (0, 3000)})).whole()

    gaps_s, waits_s = 9 * 220e-6, 9 * 32e-6
    assert found.idle.sync_s + found.idle.after_sync_s == pytest.approx(waits_s, rel=0.01)
    assert found.idle.launch_s - found.idle.after_sync_s == pytest.approx(gaps_s - waits_s, rel=0.2)


def test_a_copy_to_pageable_memory_is_waited_for():
    """`loss.cpu()` before 200 us of host work: its call begins beside the kernel and ends after the copy."""
    operations = [
        Op(COMPUTE, 0, 400, launched=-10),
        Op("Memcpy DtoH (Device -> Pageable)", 400, 402, launched=406, took=396),
        Op(COMPUTE, 606, 900, launched=606),
    ]

    found = _timeline(kineto(operations, steps={1: (0, 900)})).whole()

    assert found.idle.sync_s == pytest.approx(4e-6)
    assert found.idle.after_sync_s == pytest.approx(200e-6)
    assert found.idle.unlaunched_s == 0


def test_a_copy_whose_call_returns_before_it_is_done_is_not_waited_for():
    operations = [
        Op(COMPUTE, 0, 400, launched=-10),
        Op("Memcpy HtoD (Pinned -> Device)", 400, 480, launched=410, took=396),
        Op(COMPUTE, 606, 900, launched=606),
    ]

    found = _timeline(kineto(operations, steps={1: (0, 900)})).whole()

    assert found.idle.synchronizing_s == 0


_LAUNCH_US = 5
_RETURN_US = 7
"""What a synchronising call takes where there is nothing to wait for."""
_PARTS = st.tuples(st.booleans(), st.integers(0, 300), st.integers(1, 200))
"""Of a program: whether the host waits, how long it works then, and what it launches."""


@settings(max_examples=examples(100), deadline=None)
@given(st.lists(_PARTS, min_size=2, max_size=12))
def test_what_waiting_costs_is_what_the_same_program_gains_without_it(program):
    operations, calls = played(program, waits=True)
    first, last = operations[0].start, operations[-1].end

    found = _timeline(kineto(operations, calls=calls, steps={1: (first, last)})).whole()

    without, _ = played(program, waits=False)
    assert found.idle.synchronizing_s == pytest.approx((_gaps_us(operations) - _gaps_us(without)) / 1e6)
    assert found.idle.unlaunched_s == pytest.approx(_gaps_us(without) / 1e6)


def played(program: Iterable[tuple[bool, int, int]], *, waits: bool) -> tuple[list[Op], list[Call]]:
    """What a host of one thread and a GPU of one stream do by a program, with its waits or without."""
    host = gpu = 0
    operations, calls = [], []
    for waiting, work, length in program:
        if waiting and waits:
            begin, host = host, max(host, gpu) + _RETURN_US
            calls.append(Call("cudaStreamSynchronize", begin, host))
        host += work + _LAUNCH_US
        start = max(gpu, host)
        gpu = start + length
        operations.append(Op(COMPUTE, start, gpu, launched=host))
    return operations, calls


def _gaps_us(operations: list[Op]) -> float:
    return sum(after.start - before.end for before, after in pairwise(operations))


def test_a_long_gap_without_a_launch_is_the_hosts():
    operations = [Op(COMPUTE, 0, 100, launched=-10), Op(COMPUTE, 900, 950, launched=890)]

    found = _timeline(kineto(operations, steps={1: (0, 950)})).whole()

    assert found.idle.host_s == found.idle.launch_s == pytest.approx(790e-6)


def test_without_host_calls_idle_time_has_no_reason():
    found = _timeline(kineto([Op(COMPUTE, 0, 10), Op(COMPUTE, 90, 100)])).whole()

    assert found.idle_s == pytest.approx(80e-6)
    assert found.idle is None


def test_what_copies_alone_hide_of_communication_is_neither_overlap_nor_exposed():
    operations = [
        Op(COMPUTE, 0, 20),
        Op(NCCL, 10, 110, stream=9),
        Op(COPY, 15, 50, stream=8),
    ]
    found = _timeline(kineto(operations)).whole()

    assert found.overlap_ratio == pytest.approx(0.1)
    assert found.exposed_communication_s == pytest.approx(60e-6)
    assert found.exposed_memory_s == pytest.approx(30e-6)
    assert found.idle_s == 0


def test_communication_without_any_has_no_overlap():
    assert _timeline(kineto([Op(COMPUTE, 0, 10)])).whole().overlap_ratio is None


def test_the_overlap_of_a_window_is_of_what_lies_in_it():
    # One collective reaches into the window, one lies in it, one behind it is hidden, too.
    timeline = _timeline(
        kineto(
            [
                Op(NCCL, 0, 100),
                Op(COMPUTE, 50, 130),
                Op(NCCL, 120, 140),
                Op(NCCL, 200, 300),
                Op(COMPUTE, 200, 300),
            ]
        )
    )

    found = timeline.breakdown(60_000, 160_000)

    # 40 of 40 and 10 of 20 µs.
    assert found.communication_s == pytest.approx(60e-6)
    assert found.overlap_ratio == pytest.approx(50 / 60)


def test_steps_that_the_capture_cut_are_left_out():
    steps = {1: (-50, 20), 2: (20, 60), 3: (60, 100), 4: (100, 130)}

    timeline = _timeline(kineto([Op(COMPUTE, 0, 125)], steps=steps, captured=(0, 130)))

    assert [step.step for step in timeline.by_step()] == [2, 3]
    assert timeline.window.dropped_steps == (1, 4)
    assert timeline.whole().span_s == pytest.approx(80e-6)


def test_without_a_whole_step_the_window_is_that_of_the_operations():
    timeline = _timeline(kineto([Op(COMPUTE, 10, 90)], steps={1: (-5, 200)}, captured=(0, 100)))

    assert timeline.window.source == "operations"
    assert timeline.whole().span_s == pytest.approx(80e-6)


def test_a_range_has_what_autograds_thread_launches_while_its_own_thread_waits(tmp_path):
    """PyTorch's backward pass runs on a thread of its own; a thread that works beside counts by itself."""

    def gpu_time(thread_of, name):
        operations = [Op(MATMUL, 10 * n, 10 * n + 8, launched=10 * n - 1, took=1) for n in range(1, 61)]
        ranges = [("forward", 0, 300.5), ("backward", 300.5, 700)]
        trace = kineto(operations, steps={1: (0, 700)}, ranges=ranges)
        for event in trace["traceEvents"]:
            if event["cat"] == "cuda_runtime":
                number = event["args"]["correlation"]
                event["tid"] = thread_of(number)
                event["pid"] = 100
        (read,) = read_traces([write_json(tmp_path / f"{name}.json", trace)])
        return {row.name: row for row in phase_rows(RankTimeline(read))}

    rows = gpu_time(lambda number: 100 if number <= 30 else 7, "autograd")
    assert rows["backward"].operation_count == 30
    assert rows["backward"].busy_s == pytest.approx(240e-6)
    assert rows["forward"].operation_count == 30
    beside = gpu_time(lambda number: 100 if number % 2 else 7, "beside")
    assert beside["forward"].operation_count == 15

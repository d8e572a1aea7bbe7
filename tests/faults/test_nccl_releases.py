"""What the plugin recorded under a release of NCCL, held against what the job called."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from perfd_collectors.nccl.operations import Operation, Operations, OperationTiming
from perfd_collectors.nccl.segments import FUNCTIONS

from benchmarks.gpu.nccl_releases import LARGE_BYTES, Recorded, judge

MS = 1_000_000


def call(function: str, phase: str, event_s: float | None = 0.001) -> dict[str, Any]:
    return {"function": function, "phase": phase, "bytes": LARGE_BYTES, "event_s": event_s}


def operation(number: int, function: str = "AllReduce", lasts_ns: int = MS) -> Operation:
    begin = 10 * MS * number
    return Operation(
        sequence=number + 1, operation_sequence=number, start_monotonic_ns=begin, stop_monotonic_ns=begin + 1,
        complete_monotonic_ns=begin + 2 * MS, gpu_start_ns=begin, gpu_stop_ns=begin + lasts_ns,
        gpu_longest_ns=lasts_ns, elements=LARGE_BYTES // 4, group=number, peer_or_root=0, communicator=0,
        function=FUNCTIONS.index(function), datatype=7, algorithm=1, protocol=2, channels=2, channels_seen=2,
        timing=OperationTiming.GPU, flags=0,
    )  # fmt: skip


def recorded(operations: Sequence[Operation]) -> Recorded:
    return Recorded(interface=6, operations=Operations.of(operations), lost=0, incomplete=0, dropped=0)


CALLS = [call("AllReduce", "collectives"), call("Send", "send_receive"), call("AllReduce", "again")]
WRITTEN = {"nccl": 22809, "calls": CALLS}


def test_operations_that_are_all_there_and_as_long_are_sound() -> None:
    found = judge(WRITTEN, 1, recorded([operation(0), operation(1, "Send"), operation(2)]))

    assert found.sound
    assert (found.nccl, found.called, found.recorded) == ("2.28.9", 3, 3)
    assert found.error_ratio == {"AllReduce": 0.0, "Send": 0.0}


def test_a_missing_operation_is_named() -> None:
    found = judge(WRITTEN, 0, recorded([operation(0), operation(2)]))

    assert not found.sound
    assert found.missing == {"Send": 1}


def test_what_a_release_does_not_announce_is_not_missed() -> None:
    calls = [*CALLS, call("Broadcast", "collectives")]
    found = judge(
        {"nccl": 23007, "calls": calls}, 0, recorded([operation(0), operation(1, "Send"), operation(2)])
    )

    assert found.sound
    assert (found.missing, found.unannounced) == ({}, {"Broadcast": 1})


def test_what_lies_around_a_kernel_is_taken_from_the_shortest() -> None:
    around_s, short_ns = 10e-6, 5_000
    short = {"function": "AllReduce", "phase": "collectives", "bytes": 1024, "event_s": 5e-6 + around_s}
    calls = [short, call("AllReduce", "collectives", 1e-3 + around_s)]
    found = judge(
        {"nccl": 22809, "calls": calls}, 0, recorded([operation(0, lasts_ns=short_ns), operation(1)])
    )

    assert found.error_ratio["AllReduce"] == pytest.approx(0.0, abs=1e-9)


def test_times_that_cannot_be_are_none() -> None:
    many = [
        operation(number)._replace(gpu_start_ns=number, gpu_stop_ns=number + 5 * MS) for number in range(40)
    ]
    calls = [call("AllReduce", "collectives") for _ in many]
    found = judge({"nccl": 23203, "calls": calls}, 0, recorded(many))

    assert not found.believed
    assert found.error_ratio == {"AllReduce": None}


def test_a_duration_that_is_wrong_is_not_sound() -> None:
    found = judge(WRITTEN, 0, recorded([operation(0), operation(1, "Send", lasts_ns=2 * MS), operation(2)]))

    assert not found.sound
    assert found.error_ratio["Send"] == 1.0


def test_what_graphs_launched_is_not_taken_for_calls() -> None:
    calls = [*CALLS[:2], call("AllReduce", "graph", None), CALLS[2]]
    launched = [operation(number, lasts_ns=7 * MS) for number in range(2, 7)]

    found = judge(
        {**WRITTEN, "calls": calls},
        0,
        recorded([operation(0), operation(1, "Send"), *launched, operation(9)]),
    )

    assert found.sound
    assert (found.recorded, found.from_graphs) == (3, 5)

"""Times of other kernels are left out, per operation where possible, and an event says which."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nccl.driver import NEEDS_GCC, driving, go_on, only_segment, wait_for
from nccl.test_reduce import SEND, operation
from nccl.test_segment_owner import Reader, events
from perfd_collectors.nccl.operations import Operation, Operations, OperationTiming, RingBuffers, check_times

from perfd.aggregator.limits import AggregatorCounters, Limits
from perfd.aggregator.operations.nccl_time_counters import NcclTimeCounters
from perfd.model import CollectiveTimes, Event, SampleTable, Scope

MS = 1_000_000


def in_a_row(count: int, apart_ns: int, *, communicator: int = 0, first: int = 0) -> list[Operation]:
    return [
        operation(n, start_ns=n * apart_ns, duration_ns=MS, communicator=communicator)._replace(
            start_monotonic_ns=n
        )
        for n in range(first, first + count)
    ]


def timed(operations: Operations) -> list[int]:
    return operations.column("operation_sequence")[operations.measured].tolist()


def test_kernels_of_a_communicator_that_overlap_are_not_its_own() -> None:
    sound, mixed = in_a_row(100, 2 * MS), in_a_row(100, MS // 2, communicator=1)

    check = check_times(Operations.of(sound + mixed))

    assert check.communicators == {1}
    assert check.wrong == 100
    assert timed(check.operations) == list(range(100))


def test_a_group_shares_its_kernel() -> None:
    grouped = [one._replace(group=7) for one in in_a_row(100, MS // 2)]

    check = check_times(Operations.of(grouped))

    assert (check.communicators, check.wrong) == (frozenset(), 0)


def test_kernels_of_two_communicators_overlap_legitimately() -> None:
    both = in_a_row(100, 2 * MS) + in_a_row(100, 2 * MS, communicator=1)

    assert check_times(Operations.of(both)).wrong == 0


def all_to_all(calls: int, apart_ns: int) -> list[Operation]:
    """Grouped sends and receives to three peers; of some peers one takes longer."""
    return [
        operation(
            call, start_ns=call * apart_ns, duration_ns=(1 + peer) * MS // 4, function=SEND, peer=peer
        )._replace(group=call + 1, start_monotonic_ns=call * 10 + peer)
        for call in range(calls)
        for peer in (1, 2, 3)
    ]


def test_only_the_operation_with_the_times_of_an_earlier_kernel_loses_them() -> None:
    calls = all_to_all(40, 2 * MS)
    stale = {3 * call + 1 for call in range(1, 40, 2)}
    calls = [
        one._replace(gpu_start_ns=one.gpu_start_ns - 2 * MS, gpu_stop_ns=one.gpu_stop_ns - 2 * MS)
        if place in stale
        else one
        for place, one in enumerate(calls)
    ]

    check = check_times(Operations.of(calls))

    assert check.communicators == frozenset()
    assert {place for place, known in enumerate(check.operations.measured) if not known} == stale


@given(wrong=st.sets(st.integers(0, 99), max_size=10))
def test_a_few_wrong_times_do_not_represent_the_rest(wrong: set[int]) -> None:
    operations = [
        one._replace(gpu_stop_ns=one.gpu_stop_ns + 50 * MS) if number in wrong else one
        for number, one in enumerate(in_a_row(100, 2 * MS))
    ]

    check = check_times(Operations.of(operations))

    assert check.communicators == frozenset()
    assert check.wrong <= len(wrong)


@given(count=st.integers(0, 20))
def test_of_few_operations_no_communicator_is_judged(count: int) -> None:
    assert check_times(Operations.of(in_a_row(count, MS // 2))).communicators == frozenset()


@given(
    starts=st.lists(st.integers(0, 10**9), max_size=60),
    groups=st.integers(1, 5),
    communicators=st.integers(1, 3),
)
def test_whatever_the_times_no_operation_is_lost(starts: list[int], groups: int, communicators: int) -> None:
    given_ = [
        operation(n, start_ns=start, communicator=n % communicators)._replace(
            group=n % groups, start_monotonic_ns=n
        )
        for n, start in enumerate(starts)
    ]

    check = check_times(Operations.of(given_))

    assert [one.operation_sequence for one in check.operations.rows()] == list(range(len(starts)))
    assert check.wrong == sum(one.timing == OperationTiming.HOST for one in check.operations.rows())


@NEEDS_GCC
def test_a_channel_with_the_times_of_an_earlier_kernel_does_not_lengthen_the_operation(
    built: Path, tmp_path: Path
) -> None:
    with driving(built, tmp_path, 5, "bursts", 50, RANK="0", WORLD_SIZE="2", DRIVER_STALE_CHANNEL="1") as job:
        reader = Reader(tmp_path)
        wait_for(job, "0")
        reader.window()
        go_on(job)
        wait_for(job, "50")
        with only_segment(tmp_path) as segment:
            operations = RingBuffers(segment).read().operations
        records = reader.window()
        reader.collector.close()

    assert set(operations.durations_ns) == {MS}
    assert set(operations.column("channels_mistimed")) == {1}
    (times,) = [one for one in records if isinstance(one, CollectiveTimes)]
    assert times.count == 50
    assert not [one for one in records if isinstance(one, Event)]


@NEEDS_GCC
def test_a_rank_whose_times_are_of_other_work_shows_none_and_says_why(built: Path, tmp_path: Path) -> None:
    reader = Reader(tmp_path)
    records = []
    with driving(built, tmp_path, 6, "bursts", 50, RANK="0", WORLD_SIZE="2", DRIVER_MIXED_UP="1") as job:
        wait_for(job, "0")
        reader.window()
        for begun in (50, 100):
            go_on(job)
            wait_for(job, str(begun))
            records += reader.window()
    reader.collector.close()

    tables = [one for one in records if isinstance(one, SampleTable) and one.scope is Scope.RANK]
    assert not [one for one in records if isinstance(one, CollectiveTimes)]
    assert [table.columns["nccl_operations"][0] for table in tables] == [50, 100]
    assert [table.columns["nccl_untimed_operations"][0] for table in tables] == [50, 100]
    assert all(math.isnan(table.columns["nccl_busy_s"][0]) for table in tables)
    (reported,) = [message for message in events(records) if "NCCL" in message]
    assert reported.startswith(
        "NCCL reports GPU times of other kernels for AllReduce on a communicator of 2 ranks."
    )
    # The communicator did no Broadcast, after which NCCL 2.32 mixes times up.
    assert "2.32" not in reported


def test_a_rank_that_no_longer_reports_its_time_in_kernels_has_no_share_of_it() -> None:
    times = NcclTimeCounters(Limits(), AggregatorCounters())
    for second in range(20):
        times.put(0, second, 0.0 if second < 5 else math.nan, 0, 100 * second)
        times.put(1, second, 0.1 * second, 0, 100 * second)

    table = times.table()

    assert math.isnan(table.busy_s[0])
    assert table.busy_s[1] / table.span_s[1] == pytest.approx(0.1)

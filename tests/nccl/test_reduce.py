"""Operations become one record per communicator and kind, and say nothing that was not measured."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from perfd_collectors.nccl.operations import (
    Operation,
    Operations,
    OperationTiming,
    OperationWindow,
    busy_ns,
    keep_one_in,
    reduce_operations,
)
from perfd_collectors.nccl.operations.window_reduction import GpuClock, GpuClockReadings
from perfd_collectors.nccl.segments import UNTIMED_KERNEL_NS, Communicator

from perfd.model import CollectiveTimes, TimingSource

WINDOW = OperationWindow(job="j", rank=3, start_unix_ns=1, end_unix_ns=2)
TENSOR = Communicator(index=0, id=0xAB, rank=1, ranks=4, nodes=1, live=True, name="tp")
ALL_REDUCE, ALL_GATHER, SEND = 4, 2, 6


def operation(
    sequence: int,
    start_ns: int = 0,
    duration_ns: int = 1000,
    *,
    function: int = ALL_REDUCE,
    communicator: int = 0,
    peer: int = 0,
    timing: OperationTiming = OperationTiming.GPU,
    incomplete: bool = False,
    datatype: int = 9,
    group: int = 0,
    channels_seen: int = 1,
) -> Operation:
    return Operation(
        sequence=sequence + 1,
        operation_sequence=sequence,
        start_monotonic_ns=5,
        stop_monotonic_ns=6,
        complete_monotonic_ns=7,
        gpu_start_ns=start_ns,
        gpu_stop_ns=start_ns + duration_ns,
        gpu_longest_ns=duration_ns,
        elements=1024,
        group=group,
        peer_or_root=peer,
        communicator=communicator,
        function=function,
        datatype=datatype,
        algorithm=1,
        protocol=2,
        channels=1,
        channels_seen=channels_seen,
        timing=timing,
        flags=(1 if incomplete else 0) | (2 if function == SEND else 0),
    )


def reduced(
    rows: Iterable[Operation],
    communicators: Mapping[int, Communicator],
    window: OperationWindow,
    keep: int = 1,
) -> list[CollectiveTimes]:
    return reduce_operations(Operations.of(rows), communicators, window, keep_one_in=keep)


def test_totals_are_over_all_operations_and_columns_over_those_kept() -> None:
    operations = [operation(i, duration_ns=10_000 * (i + 1) - UNTIMED_KERNEL_NS) for i in range(8)]

    (record,) = reduced(operations, {0: TENSOR}, WINDOW, keep=4)

    assert (record.count, record.total_s, record.min_s, record.max_s) == (8, 360e-6, 10e-6, 80e-6)
    assert record.total_bytes == 8 * 2048
    assert (list(record.sequences), list(record.durations_ns)) == ([0, 4], [10_000, 50_000])
    assert (record.communicator, record.communicator_rank, record.communicator_size) == ("ab", 1, 4)
    assert (record.operation, record.algorithm, record.protocol) == ("AllReduce", "RING", "SIMPLE")
    assert record.timing == TimingSource.GPU


def test_how_nccl_did_it_is_shown_for_the_largest_operation() -> None:
    small = operation(0)._replace(algorithm=0, protocol=0, channels=2, channels_seen=2)
    large = operation(1)._replace(elements=1 << 20, algorithm=1, protocol=1, channels=24, channels_seen=24)
    operations = [small, large, small._replace(operation_sequence=2)]

    (record,) = reduced(operations, {0: TENSOR}, WINDOW)

    assert (record.algorithm, record.protocol, record.channels) == ("RING", "LL128", 24)


def test_sends_to_different_peers_are_distinguished() -> None:
    records = reduce_operations(
        Operations.of([operation(0, function=SEND, peer=2), operation(0, function=SEND, peer=3)]),
        {0: TENSOR},
        WINDOW,
    )

    assert [(r.operation, r.peer, r.count) for r in records] == [("Send", 2, 1), ("Send", 3, 1)]


def test_sends_show_when_they_began_by_the_gpus_clock_and_collectives_need_not() -> None:
    sends = [operation(i, start_ns=100 * i, function=SEND, peer=2) for i in range(4)]

    (sent,) = reduced(sends, {0: TENSOR}, WINDOW, keep=2)
    (late,) = reduce_operations(
        Operations.of([operation(0, function=SEND, timing=OperationTiming.PROXY)]), {0: TENSOR}, WINDOW
    )
    (summed,) = reduced([operation(0)], {0: TENSOR}, WINDOW)

    assert sent.gpu_starts_ns == [0, 200]
    assert (late.gpu_starts_ns, summed.gpu_starts_ns) == ([], [])


def test_a_kind_of_which_sampling_keeps_no_operation_is_counted() -> None:
    window = replace(WINDOW, clock=GpuClock(to_monotonic_ns=0, monotonic_to_unix_ns=0))

    (record,) = reduced([operation(1)], {0: TENSOR}, window, keep=2)

    assert (record.count, list(record.sequences), list(record.start_increments_us)) == (1, [], [])


def test_with_the_gpus_clock_known_each_operation_shows_when_it_began_and_how_long_it_was_queued() -> None:
    # The host enqueues at 5 ns of its clock; the GPU's clock is 3 s behind it.
    clock = GpuClock(to_monotonic_ns=3 * 10**9, monotonic_to_unix_ns=10**18 - 3 * 10**9)
    window = replace(WINDOW, start_unix_ns=10**18, clock=clock)
    operations = [operation(i, start_ns=start) for i, start in enumerate((-2_000_000, 500_000, 900_000))]
    shared = [operation(i, start_ns=start, group=7) for i, start in ((3, 7_000_000), (4, 6_000_000))]

    (record,) = reduced([*operations, *shared], {0: TENSOR}, window)

    assert list(record.start_increments_us) == [-2_000, 2_500, 400, 5_100]
    assert list(record.queued_us) == [2_997_999, 3_000_499, 3_000_899, 3_005_999]


def test_of_dropped_operations_no_start_is_reported_and_the_next_one_counts_from_the_one_before() -> None:
    operations = [operation(i, start_ns=1_000_000 * i) for i in range(8)]

    (record,) = reduced(operations, {0: TENSOR}, replace(WINDOW, clock=GpuClock(0, 1)), keep=4)

    assert list(record.sequences) == [0, 4]
    assert list(record.start_increments_us) == [0, 4_000]


def test_without_the_gpus_clock_no_start_is_reported() -> None:
    (record,) = reduced([operation(0)], {0: TENSOR}, WINDOW)

    assert (list(record.start_increments_us), list(record.queued_us)) == ([], [])


def test_the_shortest_delay_of_the_newest_readings_is_the_distance_of_the_clocks() -> None:
    readings = GpuClockReadings()
    late = [operation(i, start_ns=-2_000 - delay) for i, delay in enumerate((500, 40, 900))]

    assert readings.add(Operations.of([])) is None
    # Each ends 1,000 ns after its start, and is seen to have ended at 7 ns of the host's clock.
    assert readings.add(Operations.of(late)) == 7 + 1_000 + 40
    assert (
        readings.add(Operations.of([operation(9, start_ns=-9_000), operation(10, incomplete=True)])) == 1_047
    )
    for number in range(8):
        latest = readings.add(Operations.of([operation(number, start_ns=-5_000)]))
    assert latest == 7 + 4_000


def test_an_all_gather_is_as_large_as_what_all_ranks_give() -> None:
    (record,) = reduced([operation(0, function=ALL_GATHER)], {0: TENSOR}, WINDOW)

    assert record.total_bytes == 4 * 2048


@pytest.mark.parametrize(
    "left_out",
    [
        operation(0, timing=OperationTiming.HOST),
        operation(0, incomplete=True),
        operation(0, start_ns=5000, duration_ns=-1),
        operation(0, duration_ns=3_000_000_000),
        operation(0, channels_seen=0),
    ],
    ids=["untimed", "incomplete", "ended before it began", "longer than it can be", "without a channel"],
)
def test_an_operation_without_a_measured_end_gives_no_duration(left_out: Operation) -> None:
    assert reduced([left_out], {0: TENSOR}, WINDOW) == []


@pytest.mark.parametrize("timing", [0, 77])
def test_a_timing_that_there_is_not_gives_no_duration(timing: int) -> None:
    assert reduced([operation(1)._replace(timing=timing)], {}, WINDOW) == []


def test_collectives_that_share_a_kernel_are_as_long_as_it_is_together() -> None:
    shared = [operation(i, start_ns=10 * i, duration_ns=1000 - 10 * i, group=7) for i in (3, 4, 5)]

    (record,) = reduced([*shared, operation(6, duration_ns=70)], {0: TENSOR}, WINDOW)

    assert (record.count, record.total_bytes) == (4, 4 * 2048)
    together_ns, alone_ns = 970 + UNTIMED_KERNEL_NS, 70 + UNTIMED_KERNEL_NS
    assert record.total_s == pytest.approx((together_ns + alone_ns) / 1e9)
    columns = zip(record.sequences, record.durations_ns, record.sizes_bytes, strict=True)
    assert list(columns) == [(3, together_ns, 3 * 2048), (6, alone_ns, 2048)]


def test_launches_of_a_graph_are_kernels_of_their_own_though_nccl_counts_them_once() -> None:
    launches = [operation(0, start_ns=10_000 * i) for i in range(5)]

    (record,) = reduced(launches, {0: TENSOR}, WINDOW)

    each_s = (1000 + UNTIMED_KERNEL_NS) / 1e9
    assert (record.count, record.max_s, record.total_s) == (5, each_s, pytest.approx(5 * each_s))


@pytest.mark.parametrize("timing", [OperationTiming.GPU, OperationTiming.PROXY])
def test_a_duration_is_that_of_the_kernel_whose_edges_nccl_leaves_out(timing: OperationTiming) -> None:
    (record,) = reduce_operations(
        Operations.of([operation(0, duration_ns=1000, timing=timing)]), {0: TENSOR}, WINDOW
    )

    assert list(record.durations_ns) == [1000 + UNTIMED_KERNEL_NS]


def test_of_shared_kernels_the_same_ones_are_kept_on_every_rank() -> None:
    pairs = [operation(1 + i, group=1 + i // 2) for i in range(12)]

    (record,) = reduced(pairs, {0: TENSOR}, WINDOW, keep=4)

    assert list(record.sequences) == [3, 7, 11]
    assert record.count == 12


def test_an_unknown_type_or_communicator_leaves_the_size_open() -> None:
    (of_type,) = reduced([operation(0, datatype=255)], {0: TENSOR}, WINDOW)
    (of_communicator,) = reduce_operations(
        Operations.of([operation(0, function=ALL_GATHER, communicator=9)]), {}, WINDOW
    )

    assert (of_type.total_bytes, list(of_type.sizes_bytes)) == (None, [])
    assert (of_communicator.total_bytes, of_communicator.communicator) == (None, "")


def test_overlapping_kernels_are_busy_once() -> None:
    operations = [operation(0, 0, 100), operation(1, 50, 100), operation(2, 60, 10), operation(3, 9000, 5)]

    assert busy_ns(Operations.of(operations)) == 150 + 5 + 2 * UNTIMED_KERNEL_NS


@given(st.lists(st.tuples(st.integers(0, 20_000), st.integers(0, 50)), max_size=10))
def test_the_union_equals_counting_each_instant(intervals: list[tuple[int, int]]) -> None:
    operations = [operation(i, start, length) for i, (start, length) in enumerate(intervals)]

    ends = [start + length + UNTIMED_KERNEL_NS for start, length in intervals]
    covered = {t for (start, _), end in zip(intervals, ends, strict=True) for t in range(start, end)}
    assert busy_ns(Operations.of(operations)) == len(covered)


@given(st.integers(0, 10**6), st.integers(1, 10**10), st.integers(1, 10**5))
def test_thinning_keeps_the_rate_within_its_bound(operations: int, window_ns: int, max_per_s: int) -> None:
    keep = keep_one_in(operations, window_ns, max_per_s)

    assert operations / keep <= max(1.0, max_per_s * window_ns / 1e9)
    assert keep & (keep - 1) == 0

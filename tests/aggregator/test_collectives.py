"""Collectives of several agents stand rank beside rank, whatever order they come in."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfd.aggregator.limits import AggregatorCounters, Limits
from perfd.aggregator.operations.collective_tables import CollectiveRows
from perfd.aggregator.operations.nccl_time_counters import NcclTimeCounters
from perfd.analysis.data.job_data import Method
from perfd.analysis.data.robust_stats import known
from perfd.model import CollectiveTimes, TimingSource
from tests.support.nccl_records import CollectiveTable, by_rank

SPAN = 48
"""Sequence numbers that the random communicators keep; more than arrays begin with room for."""


def times(
    rank: int,
    sequences: list[int],
    *,
    operation: str = "AllReduce",
    size: int | None = 2,
    peer: int | None = None,
    communicator_rank: int | None = None,
    communicator: str = "ab",
) -> CollectiveTimes:
    return CollectiveTimes(
        job="j",
        rank=rank,
        communicator=communicator,
        communicator_rank=rank if communicator_rank is None else communicator_rank,
        communicator_size=size,
        operation=operation,
        peer=peer,
        timing=TimingSource.GPU,
        start_unix_ns=0,
        end_unix_ns=4_000_000_000,
        count=len(sequences),
        total_s=1.0,
        min_s=1.0,
        max_s=1.0,
        sequences=sequences,
        durations_ns=[(rank + 1) * 1_000_000_000 + s for s in sequences],
        sizes_bytes=[8] * len(sequences),
    )


def rows(slots: int = 8, communicators: int = 4) -> tuple[CollectiveRows, AggregatorCounters]:
    counters = AggregatorCounters()
    limits = Limits(operations_per_communicator=slots, communicators_per_job=communicators)
    return CollectiveRows(limits, counters), counters


def tables(state: CollectiveRows) -> list[CollectiveTable]:
    """What is known of each communicator."""
    for stack in state.stacks():
        absent = np.arange(stack.sequence.shape[1]) >= stack.lengths[:, None]
        assert (stack.sequence[absent] == -1).all()
        assert np.isnan(stack.durations_s[absent]).all()
        assert np.isnan(stack.size_bytes[absent]).all()
    return [
        CollectiveTable(
            communicator=name,
            operation=stack.operation,
            ranks=stack.ranks[row].tolist(),
            sequence=stack.sequence[row, :length],
            durations_s=stack.durations_s[row, :length],
            size_bytes=stack.size_bytes[row, :length],
            kernel_ratio=stack.kernel_ratio[row],
            operations_per_s=known(float(stack.operations_per_s[row])),
            counted_s=known(float(stack.counted_s[row])),
            best_s_per_byte=known(float(stack.best_s_per_byte[row])),
            best_size_bytes=float(stack.best_size_bytes[row]),
            timing=stack.timings[row],
            source=stack.sources[row],
        )
        for stack in state.stacks()
        for row, (name, length) in enumerate(zip(stack.communicators, stack.lengths, strict=True))
    ]


def test_operations_are_matched_by_sequence_in_any_order_of_arrival() -> None:
    state, _ = rows()

    state.put(times(1, [2, 3]))
    state.put(times(0, [0, 1, 2]))

    (table,) = tables(state)
    assert (table.sequence.tolist(), list(table.ranks)) == ([0, 1, 2, 3], [0, 1])
    assert np.isnan(table.durations_s[[0, 1, 3], [1, 1, 0]]).all()
    assert np.floor(table.durations_s[2]).tolist() == [1.0, 2.0]
    assert table.size_bytes.tolist() == [8.0] * 4
    assert table.kernel_ratio.tolist() == [0.25, 0.25]


@pytest.mark.parametrize(("start_unix_ns", "increment_us"), [(-(2**63), -1), (2**63 - 1, 1)])
def test_times_beyond_64_bits_are_the_last_ones_that_can_be_kept(
    start_unix_ns: int, increment_us: int
) -> None:
    state, _ = rows()
    for rank in range(2):
        one = times(rank, [0, 1])
        state.put(replace(one, start_unix_ns=start_unix_ns, start_increments_us=[increment_us] * 2))
    (table,) = tables(state)
    assert table.sequence.tolist() == [0, 1]


def test_how_nccl_did_it_is_the_newest_word_and_a_new_communicator_has_none() -> None:
    state, _ = rows()
    ring = Method(algorithm="RING", protocol="SIMPLE", channels=24)
    for rank in range(2):
        state.put(replace(times(rank, [0]), algorithm="TREE", protocol="LL"))
        state.put(replace(times(rank, [1]), algorithm="RING", protocol="SIMPLE", channels=24))
    (stack,) = state.stacks()
    assert stack.methods == [ring]

    for rank in range(2, 4):
        state.put(times(rank, [0], communicator_rank=rank - 2))
    (stack,) = state.stacks()
    assert (stack.ranks.tolist(), stack.methods) == ([[2, 3]], [Method()])


def test_a_communicator_with_a_silent_rank_gives_no_table() -> None:
    state, _ = rows()

    state.put(times(0, [0], size=3))
    state.put(times(1, [0], size=3))

    assert tables(state) == []


def test_newer_operations_take_the_place_of_older_ones_and_late_ones_are_ignored() -> None:
    state, _ = rows(slots=4)
    for rank in (0, 1):
        state.put(times(rank, list(range(10))))

    state.put(times(0, [1]))

    (table,) = tables(state)
    assert table.sequence.tolist() == [6, 7, 8, 9]
    assert np.isfinite(table.durations_s).all()


def test_a_send_meets_its_receive() -> None:
    state, _ = rows()

    state.put(times(4, [0, 1], operation="Send", communicator_rank=0, peer=1, size=4))
    state.put(times(5, [0, 1], operation="Recv", communicator_rank=1, peer=0, size=4))
    state.put(times(5, [0], operation="Send", communicator_rank=1, peer=0, size=4))

    (table,) = tables(state)
    assert (table.operation, list(table.ranks)) == ("SendRecv", [4, 5])
    assert np.isfinite(table.durations_s).all()


def test_what_cannot_be_matched_is_left_out() -> None:
    state, _ = rows()

    state.put(times(0, [0], operation="Broadcast"))
    state.put(times(0, [0], communicator=""))
    state.put(times(0, [0], size=None))

    assert tables(state) == []


def test_an_id_used_again_by_another_communicator_starts_afresh() -> None:
    state, _ = rows()
    for rank in (0, 1):
        state.put(times(rank, [0, 1]))

    state.put(times(7, [0], communicator_rank=1))
    assert tables(state) == []
    state.put(times(6, [0], communicator_rank=0))

    (table,) = tables(state)
    assert (list(table.ranks), table.sequence.tolist()) == ([6, 7], [0])


def test_too_many_communicators_are_refused_and_counted() -> None:
    state, counters = rows(communicators=2)

    for number in range(3):
        state.put(times(0, [0], communicator=str(number)))

    assert counters.rejected["communicators_per_job"] == 1


def test_time_in_nccl_is_the_change_between_readings_and_a_restarted_counter_starts_afresh() -> None:
    nccl = NcclTimeCounters(Limits(), AggregatorCounters())
    nccl.put(1, 10.0, 3.0, 0)
    nccl.put(1, 11.0, 3.25, 2)
    nccl.put(0, 10.0, 3.0, 0)

    (time,) = by_rank(nccl.table())
    assert (time.rank, time.busy_s, time.span_s, time.lost_operations) == (1, 0.25, 1.0, 2)

    nccl.put(1, 12.0, 0.1, 0)
    assert not nccl.table()
    # Of one instant there is no rate.
    nccl.put(1, 12.0, 0.2, 0)
    assert not nccl.table()

    # All that it lost since it began again was lost lately; what one that is seen first had lost was not.
    nccl.put(1, 13.0, 0.1, 7)
    nccl.put(1, 14.0, 0.2, 9)
    nccl.put(0, 11.0, 3.5, 4)
    nccl.put(2, 10.0, 3.0, 5)
    nccl.put(2, 11.0, 3.5, 6)
    assert {one.rank: one.lost_operations for one in by_rank(nccl.table())} == {0: 4, 1: 9, 2: 1}


def test_what_ranks_wait_while_a_job_starts_is_not_what_is_usual() -> None:
    state, _ = rows()
    nccl = NcclTimeCounters(Limits(), AggregatorCounters())
    busy_s = 0.0
    for window, total_s in enumerate([0.9, 0.1, 0.1, 0.1]):
        start = window * 1_000_000_000
        for rank in (0, 1):
            state.put(
                dataclasses.replace(
                    times(rank, [window]), total_s=total_s, start_unix_ns=start, end_unix_ns=start + 10**9
                )
            )
        nccl.put(0, float(window), busy_s, 0)
        busy_s += total_s

    (table,) = tables(state)
    (time,) = by_rank(nccl.table())
    assert table.kernel_ratio.tolist() == pytest.approx([0.1, 0.1])
    assert time.busy_s / time.span_s == pytest.approx(0.1)


def test_a_rare_operation_has_its_share_of_all_time() -> None:
    state, _ = rows()
    for window in (0, 9):
        start = window * 1_000_000_000
        for rank in (0, 1):
            state.put(
                dataclasses.replace(
                    times(rank, [window]), total_s=0.5, start_unix_ns=start, end_unix_ns=start + 10**9
                )
            )

    (table,) = tables(state)
    assert table.kernel_ratio.tolist() == pytest.approx([0.1, 0.1])


def paced(rank: int, first: int, duration_ns: int, size: int = 1 << 22, count: int = 64) -> CollectiveTimes:
    made = times(rank, list(range(first, first + count)))
    return replace(made, durations_ns=[duration_ns] * count, sizes_bytes=[size] * count)


def test_a_communicator_remembers_its_own_best_stretch_of_large_operations() -> None:
    state, _ = rows(slots=64)
    for first, duration_ns in ((0, 1_000_000), (64, 4_000_000), (128, 4_000_000)):
        for rank in (0, 1):
            state.put(paced(rank, first, duration_ns))

    (table,) = tables(state)
    assert table.best_s_per_byte == pytest.approx(1e-3 / (1 << 22))
    assert table.best_size_bytes == 1 << 22


def test_small_operations_do_not_make_a_pace_and_larger_ones_begin_a_new_one() -> None:
    state, _ = rows(slots=64)
    for rank in (0, 1):
        state.put(paced(rank, 0, 1000, size=4096))
    for rank in (0, 1):
        state.put(paced(rank, 64, 1_000_000))
    assert tables(state)[0].best_s_per_byte is None

    for first in (128, 192):
        for rank in (0, 1):
            state.put(paced(rank, first, 64_000_000, size=1 << 28))
    assert tables(state)[0].best_s_per_byte == pytest.approx(64e-3 / (1 << 28))


def test_communicators_that_are_no_longer_used_give_no_table_and_make_room() -> None:
    state, counters = rows(communicators=2)
    later = {"start_unix_ns": 2000 * 10**9, "end_unix_ns": 2001 * 10**9}
    for rank in (0, 1):
        state.put(times(rank, [0], communicator="old"))
        state.put(replace(times(rank, [0], communicator="used"), **later))
    assert [table.communicator for table in tables(state)] == ["used"]

    for rank in (0, 1):
        state.put(replace(times(rank, [0], communicator="new"), **later))

    assert {table.communicator for table in tables(state)} == {"used", "new"}
    assert not counters.rejected


def in_turn(state: CollectiveRows, communicators: str, *, each_s: int, count: int) -> list[bool]:
    """Communicators of ranks 0 and 1 one after the other, and which are new at the end."""
    for at, name in enumerate(communicators):
        for second in range(at * each_s, (at + 1) * each_s):
            span = {"start_unix_ns": second * 10**9, "end_unix_ns": (second + 1) * 10**9 - 1}
            first = (second - at * each_s) * count
            for rank in (0, 1):
                reported = times(rank, list(range(first, first + count)), communicator=name)
                state.put(replace(reported, **span))
    (stack,) = state.stacks()
    assert list(stack.communicators) == [communicators[-1]]
    assert stack.renewed is not None
    return stack.renewed.tolist()


@pytest.mark.parametrize(
    ("names", "each_s", "count", "new"),
    [("abc", 3, 16, [True]), ("ab", 11, 16, [False]), ("ab", 3, 4, [False]), ("a", 3, 16, [False])],
    ids=["anew every 3 s", "11 s ago", "after a few of the start", "the only one"],
)
def test_a_communicator_is_new_for_ten_seconds_after_it_took_the_place_of_another(
    names: str, each_s: int, count: int, new: list[bool]
) -> None:
    state, _ = rows(slots=1024)
    assert in_turn(state, names, each_s=each_s, count=count) == new


def test_what_an_agent_with_a_new_spool_sends_again_is_counted_once() -> None:
    def reported(first: int, count: int, start_s: int, end_s: int) -> CollectiveTimes:
        return replace(
            times(0, list(range(first, first + count))),
            start_unix_ns=start_s * 10**9,
            end_unix_ns=end_s * 10**9,
            count=count,
            total_s=0.01 * count,
        )

    state, _ = rows(slots=1024)
    state.put(replace(reported(0, 10, 0, 1), rank=1, communicator_rank=1))
    for second in range(100):
        state.put(reported(10 * second, 10, second, second + 1))
    before = tables(state)[0]
    # All that the ring holds, and two seconds that no agent was there for.
    state.put(reported(500, 520, 50, 102))
    again = tables(state)[0]
    state.put(reported(500, 520, 50, 102))

    assert (before.operations_per_s, before.kernel_ratio[0]) == pytest.approx((10.0, 0.1))
    assert (again.operations_per_s, again.kernel_ratio[0]) == pytest.approx((10.0, 0.1))
    assert again.sequence[-1] == 1019
    assert tables(state)[0].operations_per_s == again.operations_per_s
    for second in range(102, 106):
        state.put(reported(10 * second, 10, second, second + 1))
    assert tables(state)[0].operations_per_s == pytest.approx(10.0)


def test_a_rank_stands_still_since_its_counter_last_moved() -> None:
    nccl = NcclTimeCounters(Limits(), AggregatorCounters())
    for second, operations in enumerate([5, 6, 6, 6]):
        nccl.put(0, 100.0 + second, 1.0, 0, operations, read_s=5.0 + second)

    (time,) = by_rank(nccl.table())
    assert (time.operations, time.still_s, time.read_s) == (6, 2.0, 8.0)


def test_of_many_readings_the_newest_64_count() -> None:
    nccl = NcclTimeCounters(Limits(), AggregatorCounters())
    random = np.random.default_rng(1)
    busy_s = np.cumsum(random.random(150))
    for second, busy in enumerate(busy_s.tolist()):
        nccl.put(3, float(second), busy, lost=10.0 * second)
        if second > 100:
            nccl.put(1, float(second), busy, lost=0.0)

    fewer, more = by_rank(nccl.table())

    bounds = np.linspace(86, 149, 9).round().astype(int)
    usual = np.median(np.diff(busy_s[bounds]) / np.diff(bounds))
    assert (more.rank, more.span_s, more.lost_operations) == (3, 63.0, 630)
    assert more.busy_s == pytest.approx(63 * usual)
    assert more.lately_ratio == pytest.approx((busy_s[149] - busy_s[bounds[-2]]) / (149 - bounds[-2]))
    assert (fewer.rank, fewer.span_s, fewer.lost_operations) == (1, 48.0, 0)


@dataclasses.dataclass
class Reported:
    """What the random records told of one communicator, in the plainest form."""

    ranks: dict[int, int] = dataclasses.field(default_factory=dict)
    durations_s: dict[int, dict[int, float]] = dataclasses.field(default_factory=dict)

    def put(self, record: CollectiveTimes) -> None:
        column = record.communicator_rank or 0
        if self.ranks.get(column, record.rank) != record.rank:
            self.ranks, self.durations_s = {}, {}
        self.ranks[column] = record.rank
        columns = dict(zip(record.sequences, record.durations_ns, strict=True))
        newest = max([*self.durations_s, *columns])
        for sequence, duration_ns in columns.items():
            self.durations_s.setdefault(sequence, {})[column] = duration_ns / 1e9
        self.durations_s = {s: of for s, of in self.durations_s.items() if s > newest - SPAN}


@st.composite
def reports(draw: st.DrawFn) -> CollectiveTimes:
    first = draw(st.integers(0, 200))
    gaps = st.sampled_from([1, 1, 1, 2, 16])
    sequences = np.cumsum([first, *draw(st.lists(gaps, max_size=20))]).tolist()
    if draw(st.booleans()):
        sequences = draw(st.permutations([*sequences, sequences[0]]))
    column = draw(st.integers(0, 1))
    replaced = draw(st.sampled_from([0] * 9 + [10]))
    return dataclasses.replace(
        times(replaced + column, sequences, communicator=draw(st.sampled_from("abc"))),
        communicator_rank=column,
        durations_ns=draw(st.lists(st.integers(0, 10**9), min_size=len(sequences), max_size=len(sequences))),
    )


@given(st.lists(reports(), min_size=1, max_size=40))
def test_whatever_comes_in_whatever_order_the_newest_are_held(records: list[CollectiveTimes]) -> None:
    state, _ = rows(slots=SPAN)
    reported: dict[str, Reported] = {}
    for record in records:
        state.put(record)
        reported.setdefault(record.communicator, Reported()).put(record)

    whole = {name: one for name, one in reported.items() if len(one.ranks) == 2}
    found = {table.communicator: table for table in tables(state)}

    assert found.keys() == whole.keys()
    for name, one in whole.items():
        assert list(found[name].ranks) == [one.ranks[0], one.ranks[1]]
        assert found[name].sequence.tolist() == sorted(one.durations_s)
        expected = [[one.durations_s[s].get(c, np.nan) for c in (0, 1)] for s in sorted(one.durations_s)]
        np.testing.assert_array_equal(found[name].durations_s, expected)


def test_columns_that_contradict_each_other_are_left_out() -> None:
    state, _ = rows()
    state.put(times(0, [0, 1]))

    state.put(replace(times(1, [0, 1]), durations_ns=[1]))
    assert np.isnan(tables(state)[0].durations_s[:, 1]).all()

    state.put(replace(times(1, [0, 1]), sizes_bytes=[1]))
    state.put(replace(times(1, [1 << 63]), durations_ns=[1]))
    assert tables(state)[0].sequence.tolist() == [0, 1]
    assert np.isnan(tables(state)[0].durations_s[:, 1]).all()


def test_a_look_is_a_copy_that_later_operations_do_not_change() -> None:
    state, _ = rows()
    for rank in (0, 1):
        state.put(times(rank, [0, 1]))
    (stack,) = state.stacks()
    before = stack.durations_s.copy()

    for rank in (0, 1):
        state.put(replace(times(rank, [0, 1]), durations_ns=[7, 7]))

    np.testing.assert_array_equal(stack.durations_s, before)


def test_an_impossibly_large_communicator_is_refused_and_counted() -> None:
    state, counters = rows()

    state.put(times(0, [0], size=1 << 32))

    assert state.stacks() == []
    assert counters.rejected["ranks_per_job"] == 1


def test_many_large_communicators_are_refused_and_counted_until_others_are_left() -> None:
    counters = AggregatorCounters()
    state = CollectiveRows(Limits(communicator_ranks_per_job=5), counters)
    for communicator in ("ab", "cd", "ef"):
        for rank in (0, 1):
            state.put(times(rank, [0], communicator=communicator))
    assert [table.communicator for table in tables(state)] == ["ab", "cd"]
    assert counters.rejected["communicator_ranks_per_job"] == 2

    for rank in (0, 1):
        state.put(replace(times(rank, [0], communicator="gh"), end_unix_ns=2000 * 10**9))
    assert [table.communicator for table in tables(state)] == ["gh"]


def test_a_clock_that_is_far_ahead_hides_no_communicator_of_other_nodes() -> None:
    state, _ = rows()
    hour_ns = 3600 * 10**9
    for second in range(3):
        ended_ns = second * 10**9
        for rank in (0, 1):
            state.put(replace(times(rank, [second], communicator="ab"), end_unix_ns=ended_ns))
        for rank in (2, 3):
            ahead = replace(
                times(rank, [second], communicator="cd", communicator_rank=rank - 2),
                end_unix_ns=ended_ns + hour_ns,
            )
            state.put(ahead)

    assert [table.communicator for table in tables(state)] == ["ab", "cd"]


def test_a_communicator_that_one_of_its_ranks_left_is_gone_though_another_one_is_silent() -> None:
    state, _ = rows()
    for rank in (0, 1):
        state.put(times(rank, [0], communicator="ab"))
    # Rank 1 was lost; rank 0 goes on with another one.
    state.put(replace(times(0, [0], communicator="cd"), end_unix_ns=2000 * 10**9))
    state.put(replace(times(2, [0], communicator="cd", communicator_rank=1), end_unix_ns=2000 * 10**9))

    assert [table.communicator for table in tables(state)] == ["cd"]


def test_a_rank_beyond_all_bounds_is_refused_and_counted() -> None:
    state, counters = rows()
    counted = NcclTimeCounters(Limits(), counters)

    state.put(times((1 << 32) - 1, [0], communicator_rank=0))
    counted.put((1 << 32) - 1, 1.0, 0.5, 0.0)
    counted.put((1 << 32) - 1, 2.0, 1.0, 0.0)

    assert state.stacks() == []
    assert not counted.table()
    assert counters.rejected["ranks_per_job"] == 3


def test_windows_that_cannot_be_say_nothing_of_the_time_in_kernels() -> None:
    state, _ = rows()
    for rank in (0, 1):
        reported = times(rank, [0])
        state.put(reported)
        state.put(replace(reported, total_s=math.inf))
        state.put(replace(reported, count=(1 << 64) - 1))
        state.put(replace(reported, start_unix_ns=-1 << 63, end_unix_ns=4 * 10**9))

    assert tables(state)[0].kernel_ratio.tolist() == [0.25, 0.25]


def test_late_operations_find_room_after_another_communicator_took_its_share() -> None:
    limits = Limits(fewest_operations_per_communicator=8, operation_cells_per_job=128)
    state = CollectiveRows(limits, AggregatorCounters())
    for rank in (0, 1):
        state.put(times(rank, [*range(50), *range(55, 64)]))
    for rank in (0, 1):
        state.put(times(rank, [0], communicator="cd"))

    state.put(times(0, [50, 51, 52, 53, 54]))
    state.put(times(0, [64]))

    (first, _) = tables(state)
    assert first.sequence.tolist() == list(range(33, 65))


def test_late_operations_find_room_in_a_row_that_already_has_more_than_it_may_hold_now() -> None:
    limits = Limits(fewest_operations_per_communicator=8, operation_cells_per_job=128)
    state = CollectiveRows(limits, AggregatorCounters())
    for rank in (0, 1):
        state.put(times(rank, [*range(23), 63]))
    state.put(times(0, [0], communicator="cd", size=6))

    state.put(times(0, list(range(48, 63))))
    (late,) = tables(state)
    state.put(times(0, [64]))
    (first,) = tables(state)

    assert late.sequence.tolist() == [*range(23), *range(48, 64)]
    assert first.sequence.tolist() == list(range(49, 65))


@pytest.mark.parametrize(
    ("every", "pause_ns", "missing", "forgotten"),
    [
        (1, 3 * 10**9, 17, True),
        (1, 3 * 10**9, 16, False),
        (1, 3 * 10**9 - 1, 10**6, False),
        # One that reports each tenth operation may lack four of its reports.
        (10, 3 * 10**9, 41, True),
        (10, 3 * 10**9, 40, False),
        (4, 3 * 10**9, 17, True),
        (5, 3 * 10**9, 20, False),
        (5, 3 * 10**9, 21, True),
    ],
)
def test_what_came_before_a_hole_of_seconds_is_forgotten(
    every: int, pause_ns: int, missing: int, forgotten: bool
) -> None:
    state, _ = rows(slots=10**7)
    before = list(range(0, 10 * every, every))
    after = list(range(before[-1] + missing, before[-1] + missing + 10 * every, every))
    for rank in (0, 1):
        state.put(times(rank, before))
    for rank in (0, 1):
        state.put(replace(times(rank, after), start_unix_ns=4 * 10**9 + pause_ns, end_unix_ns=20 * 10**9))

    (table,) = tables(state)
    assert table.sequence.tolist() == (after if forgotten else before + after)


def timed(rank: int, communicator: str, at_s: float, *, exact: bool = True) -> CollectiveTimes:
    """A record of a whole second: two operations, the first at `at_s`, the other one 0.1 s later."""
    found = times(rank, [0, 1], communicator=communicator)
    window_ns = int(at_s) * 1_000_000_000
    return replace(
        found,
        start_unix_ns=window_ns,
        end_unix_ns=window_ns + 1_000_000_000,
        start_increments_us=[round(at_s % 1 * 1e6), 100_000] if exact else (),
    )


def shown(reported: list[CollectiveTimes]) -> list[str]:
    found, _ = rows()
    for one in reported:
        found.put(one)
    return sorted(name for stack in found.stacks() for name in stack.communicators)


def test_a_communicator_that_another_one_of_its_ranks_took_the_place_of_says_nothing_of_now():
    old = [timed(rank, "old", 10.2) for rank in (0, 1)]
    new = [timed(rank, "new", 10.6) for rank in (0, 1)]
    assert shown(old + new) == ["new"]
    # Until all of its ranks have reported the other one, it may go on.
    assert shown([*old, new[0]]) == ["old"]
    # It is still in use, as one of two for different things is.
    assert shown([*old, *new, *(timed(rank, "old", 12.0) for rank in (0, 1))]) == ["new", "old"]
    # One of other ranks takes no place.
    assert shown([*old, *(replace(one, rank=one.rank + 2) for one in new)]) == ["new", "old"]


def test_without_the_times_of_operations_one_second_decides_nothing():
    old = [timed(rank, "old", 10.2, exact=False) for rank in (0, 1)]
    assert shown(old + [timed(rank, "new", 10.6, exact=False) for rank in (0, 1)]) == ["new", "old"]
    assert shown(old + [timed(rank, "new", 11.6, exact=False) for rank in (0, 1)]) == ["new"]

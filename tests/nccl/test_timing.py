"""Times that cannot be of their operations are not told, and somebody says so."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nccl.driver import NEEDS_GCC, driving, go_on, wait_for
from nccl.test_reduce import operation
from nccl.test_segment_owner import Reader, events
from perfd_collectors.nccl.segments.operations import Operation
from perfd_collectors.nccl.segments.timing_checks import mistimed_communicators

from perfd.aggregator.limits import AggregatorCounters, Limits
from perfd.aggregator.operations.nccl_time_counters import NcclTimeCounters
from perfd.model import CollectiveTimes, SampleTable, Scope

MS = 1_000_000


def in_a_row(count: int, apart_ns: int, *, communicator: int = 0, first: int = 0) -> list[Operation]:
    return [
        operation(n, start_ns=n * apart_ns, duration_ns=MS, communicator=communicator)._replace(
            start_monotonic_ns=n
        )
        for n in range(first, first + count)
    ]


def test_kernels_of_a_communicator_that_overlap_are_not_its_own() -> None:
    sound, mixed = in_a_row(100, 2 * MS), in_a_row(100, MS // 2, communicator=1)

    assert mistimed_communicators(sound + mixed) == {1}


def test_a_group_shares_its_kernel() -> None:
    grouped = [one._replace(group=7) for one in in_a_row(100, MS // 2)]

    assert mistimed_communicators(grouped) == set()


@given(wrong=st.sets(st.integers(0, 99), max_size=10))
def test_a_few_wrong_times_do_not_speak_for_the_rest(wrong: set[int]) -> None:
    operations = [
        one._replace(gpu_stop_ns=one.gpu_stop_ns + 50 * MS) if number in wrong else one
        for number, one in enumerate(in_a_row(100, 2 * MS))
    ]

    assert mistimed_communicators(operations) == set()


@given(count=st.integers(0, 20))
def test_of_few_operations_nothing_is_said(count: int) -> None:
    assert mistimed_communicators(in_a_row(count, MS // 2)) == set()


@NEEDS_GCC
def test_a_rank_whose_times_are_of_other_work_tells_none_and_says_why(built: Path, tmp_path: Path) -> None:
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
    (told,) = [message for message in events(records) if "NCCL" in message]
    assert "NCCL_ALLGATHERV_ENABLE=0" in told


def test_a_rank_that_no_longer_tells_its_time_in_kernels_has_no_share_of_it() -> None:
    times = NcclTimeCounters(Limits(), AggregatorCounters())
    for second in range(20):
        times.put(0, second, 0.0 if second < 5 else math.nan, 0, 100 * second)
        times.put(1, second, 0.1 * second, 0, 100 * second)

    table = times.table()

    assert math.isnan(table.busy_s[0])
    assert table.busy_s[1] / table.span_s[1] == pytest.approx(0.1)

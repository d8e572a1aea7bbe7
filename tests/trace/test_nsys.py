"""Exports of Nsight Systems: tables come and go, rows have no order."""

from __future__ import annotations

import pytest

from perfd.errors import TraceError
from perfd.trace.breakdown.rank_breakdown import RankTimeline
from perfd.trace.diagnosis.trace_analysis import analyse
from perfd.trace.model.operation_kinds import OperationKind
from perfd.trace.readers.nsys import nsys_reader
from perfd.trace.readers.trace_files import read_traces
from tests.support.traces import COMPUTE, NCCL, NsysExport

NEWER = (
    "The export has schema 3.24 of Nsight Systems, with which perfd was not tried; it was with 3.11 to 3.20."
)


@pytest.fixture
def export(tmp_path):
    return NsysExport(tmp_path / "capture.sqlite")


def test_kernels_copies_and_graphs_are_operations_in_order(export):
    export.kernel(NCCL, 5_000, 9_000)
    export.kernel(COMPUTE, 1_000, 4_000)
    export.copy(10_000, 12_000)
    export.graph(20_000, 30_000)

    (trace,) = nsys_reader.read(export.close())

    assert trace.operations.start_ns.tolist() == [1_000, 5_000, 10_000, 20_000]
    assert trace.operations.kind.tolist() == [
        OperationKind.COMPUTE,
        OperationKind.COMMUNICATION,
        OperationKind.MEMORY,
        OperationKind.COMPUTE,
    ]
    assert trace.names[trace.operations.name[2]] == "Memcpy HtoD (Pageable -> Device)"


def test_a_graph_captured_as_a_whole_keeps_the_gpu_busy(export):
    export.graph(0, 80_000)
    export.graph(90_000, 100_000)

    (trace,) = nsys_reader.read(export.close())

    assert RankTimeline(trace).whole().idle_s == pytest.approx(10e-6)


def test_each_process_is_a_rank_with_its_own_calls(export):
    export.kernel(COMPUTE, 1_000, 4_000, process=11, device=1, launched=500)
    export.kernel(COMPUTE, 2_000, 6_000, process=12, device=0, launched=700)

    first, second = read_traces([export.close()])

    assert (first.rank, first.device, first.operations.start_ns.tolist()) == (0, 0, [2_000])
    assert (second.rank, second.device, second.calls.end_ns.tolist()) == (1, 1, [500])


def test_the_few_operations_of_a_process_on_another_gpu_are_not_a_rank(export):
    for at in range(40):
        export.kernel(COMPUTE, at * 1000, at * 1000 + 500, process=1, device=1)
    export.kernel(COMPUTE, 3, 4, process=1, device=0)

    assert [trace.device for trace in nsys_reader.read(export.close())] == [1]


def test_ranges_that_count_iterations_are_steps_and_open_ones_are_not_whole(export):
    export.kernel(COMPUTE, 0, 400_000)
    for number, start in enumerate((100_000, 200_000, 300_000), start=5):
        export.nvtx(f"iteration {number}", start, start + 100_000)
    export.nvtx("iteration 8", 400_000, None)
    export.captured(400_000)

    timeline = RankTimeline(nsys_reader.read(export.close())[0])

    assert [step.number for step in timeline.window.steps] == [5, 6]
    assert timeline.window.dropped_steps == (7,)


def test_a_named_range_is_projected_to_the_gpu(export):
    export.nvtx("forward", 1_000, 20_000)
    export.kernel(COMPUTE, 30_000, 40_000, launched=10_000)
    export.kernel(COMPUTE, 60_000, 65_000, launched=18_000)
    export.kernel(COMPUTE, 70_000, 75_000, launched=28_000)
    export.kernel(COMPUTE, 0, 500)

    (rank,) = analyse(read_traces([export.close()])).ranks

    (phase,) = rank.phases
    assert phase.name == "forward"
    assert phase.host_s == pytest.approx(19e-6)
    assert phase.gpu_s == pytest.approx(35e-6)
    assert phase.busy_s == pytest.approx(15e-6)
    assert phase.operation_count == 2


def test_lost_records_are_counted_and_idle_is_unknown(export):
    for at in range(20):
        export.kernel(COMPUTE, at * 10_000, at * 10_000 + 5_000, launched=at * 10_000 - 100)
    export.lost("cudaLaunchKernel_v7000", 20)

    timeline = RankTimeline(nsys_reader.read(export.close())[0])

    assert timeline.losses.lost == 20
    assert not timeline.complete
    assert timeline.whole().idle_s is None
    assert timeline.whole().idle is None
    assert timeline.whole().uncovered_s > 0


def test_without_any_kernel_all_launches_are_lost_when_copies_show_that_numbers_match(export):
    export.lost("cudaLaunchKernel_v7000", 20)
    export.copy(100_000, 200_000, launched=90_000)

    timeline = RankTimeline(nsys_reader.read(export.close())[0])

    assert (timeline.losses.launches, timeline.losses.lost) == (20, 20)
    assert timeline.whole().idle_s is None


@pytest.mark.parametrize("end", [500, 2**63 - 1, 10**17])
def test_operations_without_a_valid_time_are_left_out_and_counted(export, end):
    export.kernel(COMPUTE, 1_000, 4_000)
    export.kernel(COMPUTE, 2_000, end)
    export.call("cudaLaunchKernel_v7000", 10, end)
    export.nvtx("forward", 900, end)

    (trace,) = nsys_reader.read(export.close())

    assert trace.operations.end_ns.tolist() == [4_000]
    assert trace.notes == ("1 GPU operations have no valid time, and are left out.",)
    assert RankTimeline(trace).whole().span_s == pytest.approx(3e-6)
    assert not [phase for phase in trace.phases if phase.end_ns > 10**16]


def test_a_capture_whose_times_are_all_invalid_says_so(export):
    export.kernel(COMPUTE, 2_000, 1_000)

    with pytest.raises(TraceError, match="no GPU operation; none has a valid time"):
        nsys_reader.read(export.close())


@pytest.mark.parametrize(
    ("version", "notes"),
    [
        ("3.11.1", ()),
        ("3.20.3", ()),
        ("?", ()),
        ("3.24.1", (NEWER,)),
    ],
)
def test_a_schema_that_perfd_was_not_tried_with_is_reported(export, version, notes):
    export.kernel(COMPUTE, 1_000, 4_000)
    export.schema(version)

    (trace,) = nsys_reader.read(export.close())

    assert trace.notes == notes


@pytest.mark.parametrize("version", ["2.9.0", "4.0.0"])
def test_a_schema_whose_columns_may_mean_something_else_is_refused(export, version):
    export.kernel(COMPUTE, 1_000, 4_000)
    export.schema(version)

    with pytest.raises(
        TraceError, match=f"schema {version[:3]} of Nsight Systems, and perfd reads 3.11 to 3.20"
    ):
        nsys_reader.read(export.close())


def test_launches_in_flight_at_the_end_are_not_lost(export):
    export.kernel(COMPUTE, 10_000, 20_000, launched=9_000)
    for at in range(5):
        export.call("cudaLaunchKernel_v7000", 30_000 + at * 10, 30_005 + at * 10, correlation=900 + at)

    assert RankTimeline(nsys_reader.read(export.close())[0]).losses.lost == 0


def test_launches_into_a_graph_are_not_lost(export):
    export.kernel(COMPUTE, 5_000, 6_000, launched=900)
    export.call("cudaStreamBeginCapture_v10000", 1_000, 1_010)
    for at in range(10):
        export.call("cudaLaunchKernel_v7000", 1_100 + at * 10, 1_105 + at * 10, correlation=500 + at)
    export.call("cudaStreamEndCapture_v10000", 2_000, 2_010)
    export.kernel(COMPUTE, 50_000, 60_000, launched=40_000)

    losses = RankTimeline(nsys_reader.read(export.close())[0]).losses

    assert (losses.launches, losses.lost) == (2, 0)


def test_negative_and_missing_times_are_left_out(export):
    export.kernel(COMPUTE, 1_000, 4_000)
    export.kernel(COMPUTE, 9_000, 5_000)

    (trace,) = nsys_reader.read(export.close())

    assert len(trace.operations) == 1


@pytest.mark.parametrize(
    ("statement", "words"),
    [
        ("DROP TABLE StringIds", "no table StringIds"),
        ("DELETE FROM CUPTI_ACTIVITY_KIND_KERNEL", "no GPU operation"),
        ("DROP TABLE CUPTI_ACTIVITY_KIND_KERNEL", "no GPU operation"),
        ("UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET start = 'soon'", "something else than numbers"),
        ("UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET deviceId = NULL", "something else than numbers"),
        ("ALTER TABLE CUPTI_ACTIVITY_KIND_KERNEL DROP COLUMN globalPid", "it has no column globalPid"),
    ],
)
def test_an_export_without_what_it_must_have_is_one_clear_sentence(export, statement, words):
    export.kernel(COMPUTE, 1_000, 4_000)
    export.execute(statement)

    with pytest.raises(TraceError, match=words) as raised:
        nsys_reader.read(export.close())

    assert "invalid literal" not in str(raised.value)
    assert "int()" not in str(raised.value)


def test_another_database_is_no_export(tmp_path):
    path = tmp_path / "other.sqlite"
    path.write_bytes(b"SQLite format 3\0" + bytes(2000))

    with pytest.raises(TraceError, match=r"not an export of Nsight Systems|cut"):
        nsys_reader.read(path)


def test_the_real_capture_lost_records_on_two_of_its_ranks(shared):
    timelines = [RankTimeline(trace) for trace in read_traces([shared.nsys])]

    assert [timeline.complete for timeline in timelines] == [True, True, False, False]
    assert [round(timeline.losses.ratio, 2) for timeline in timelines] == [0, 0, 0.63, 0.63]


@pytest.mark.parametrize("start_ns", [1e300, -1, 1 << 62, 1.8e18, "soon"])
def test_an_impossible_session_start_is_unknown(export, start_ns):
    export.kernel(COMPUTE, 1_000, 4_000)
    export.epoch(start_ns)

    (trace,) = nsys_reader.read(export.close())

    assert trace.epoch_ns == {1 << 62: 1 << 62, 1.8e18: 1_800_000_000_000_000_000}.get(start_ns)

"""Each class of bottleneck, from a trace made to be it; kernels, launches and MFU."""

from __future__ import annotations

import pytest

from perfd.analysis.findings import Kind
from perfd.gpu_peaks import load_peaks
from perfd.trace.diagnosis.trace_analysis import TraceSettings, analyse
from perfd.trace.diagnosis.trace_bottleneck import diagnose
from perfd.trace.readers.trace_files import read_traces
from tests.support.traces import COMPUTE, COPY, MATMUL, NCCL, Call, NsysExport, Op, kineto, write_json

SEND = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"


def _analysis(tmp_path, operations, settings=None, **options):
    path = write_json(tmp_path / "t.json", kineto(operations, **options))
    return analyse(read_traces([path]), settings)


def _busy(name, share, *, step=1000, **options):
    """A kernel of so much of a step, and computing for the rest of 95%."""
    end = round(step * share)
    return [Op(name, 0, end, launched=-20, **options), Op(COMPUTE, end, round(step * 0.95), launched=-10)]


@pytest.mark.parametrize(
    ("operations", "calls", "expected"),
    [
        ([Op(MATMUL, 0, 950, launched=-20)], [], Kind.COMPUTE_BOUND),
        (_busy(COMPUTE, 0.9), [], Kind.MEMORY_BOUND),
        (_busy(NCCL, 0.6), [], Kind.COMMUNICATION),
        (_busy(COPY, 0.6), [], Kind.HOST_TRANSFER),
        (
            [Op(COMPUTE, at, at + 20, launched=at - 5) for at in range(0, 1000, 100)],
            [],
            Kind.LAUNCH_BOUND,
        ),
        # In long gaps the host does something else than launching.
        ([Op(COMPUTE, at, at + 20, launched=at - 5) for at in (0, 300, 600)], [], Kind.HOST_BOUND),
        (
            [Op(COMPUTE, at, at + 20, launched=at - 5) for at in range(0, 1000, 100)],
            [Call("cudaDeviceSynchronize", at + 5, at + 80) for at in range(0, 1000, 100)],
            Kind.SYNCHRONIZATION,
        ),
    ],
)
def test_what_takes_most_is_the_bottleneck(tmp_path, operations, calls, expected):
    diagnosis = diagnose(_analysis(tmp_path, operations, calls=calls, steps={1: (0, 1000)}))

    assert diagnosis.bottleneck.kind is expected
    assert diagnosis.bottleneck.evidence
    assert diagnosis.bottleneck.advice


LOADER = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"


def _loading(tmp_path, *, host_us=600.0, thread=None):
    """Computes 40% of each step after fetching input, and waits for the GPU in the middle of that."""
    operations = [Op(COMPUTE, 600, 1000, launched=598), Op(COMPUTE, 1600, 2000, launched=1598)]
    trace = kineto(
        operations,
        calls=[Call("cudaDeviceSynchronize", at, at + 300) for at in (0, 1000)],
        ranges=[(LOADER, at, at + host_us) for at in (0, 1000)],
        steps={1: (0, 1000), 2: (1000, 2000)},
    )
    for event in trace["traceEvents"]:
        if event["name"] == LOADER and thread is not None:
            event["tid"] = thread
    return diagnose(analyse(read_traces([write_json(tmp_path / "t.json", trace)])))


def test_idle_time_in_loader_ranges_is_data_loading_however_launches_and_waits_share_it(tmp_path):
    diagnosis = _loading(tmp_path)

    assert diagnosis.first.kind is Kind.DATA_LOADING
    assert diagnosis.first.gain_ratio == pytest.approx(0.6, abs=0.01)
    assert {effect.kind for effect in diagnosis.first.effects} == {Kind.HOST_BOUND, Kind.SYNCHRONIZATION}
    assert diagnosis.bottleneck.kind is not Kind.COMPUTE_BOUND


def test_a_loader_is_found_in_old_traces_too_which_have_ranges_as_operators(tmp_path):
    trace = kineto(
        [Op(COMPUTE, 600, 1000, launched=598), Op(COMPUTE, 1600, 2000, launched=1598)],
        ranges=[(LOADER, at, at + 600) for at in (0, 1000)],
        steps={1: (0, 1000), 2: (1000, 2000)},
    )
    for event in trace["traceEvents"]:
        if event.get("cat") == "user_annotation":
            event["cat"] = "Operator"
    (read,) = read_traces([write_json(tmp_path / "t.json", trace)])

    assert [phase.name for phase in read.phases] == [LOADER, LOADER]
    assert diagnose(analyse([read])).first.kind is Kind.DATA_LOADING


def test_a_loader_that_is_fast_is_no_finding(tmp_path):
    assert _loading(tmp_path, host_us=40).first.kind is not Kind.DATA_LOADING
    assert _loading(tmp_path, host_us=60).first.kind is not Kind.DATA_LOADING
    assert Kind.DATA_LOADING in {one.kind for one in _loading(tmp_path, host_us=60).findings}


def test_a_loader_on_a_thread_that_launches_nothing_keeps_no_gpu_waiting(tmp_path):
    found = {one.kind for one in _loading(tmp_path, thread=77).findings}

    assert Kind.DATA_LOADING not in found


def test_what_waits_behind_its_launch_is_not_said_to_be_launched_late(tmp_path):
    operations = [Op(COMPUTE, at, at + 20, launched=at - 600) for at in range(0, 1000, 100)]
    diagnosis = diagnose(_analysis(tmp_path, operations, steps={1: (0, 1000)}))

    found = diagnosis.bottleneck
    assert found.kind is Kind.LAUNCH_BOUND
    assert "or what it launched has not begun" in found.evidence[0]
    assert "are after the launch" in found.evidence[1]
    assert found.advice.startswith("Most of it is after the launch")


def test_short_gaps_behind_a_launch_are_its_latency(tmp_path):
    operations = [Op(COMPUTE, at, at + 20, launched=at - 70) for at in range(0, 1000, 100)]
    diagnosis = diagnose(_analysis(tmp_path, operations, steps={1: (0, 1000)}))

    assert diagnosis.bottleneck.advice.startswith("Launching the kernels takes longer")


def test_a_profiler_of_the_same_vendor_is_advised(tmp_path):
    operations = [Op(MATMUL, 0, 950, launched=-20)]
    calls = [Call("hipDeviceSynchronize", 940, 960)]

    assert "with ncu" in diagnose(_analysis(tmp_path, operations)).bottleneck.advice
    on_amd = diagnose(_analysis(tmp_path, operations, calls=calls)).bottleneck.advice
    assert "rocprof-compute" in on_amd
    assert "ncu" not in on_amd


@pytest.mark.parametrize(
    ("name", "words", "not_said"),
    [
        ("Memcpy HtoD (Pinned -> Device)", "Keep on the GPU", "pinned memory"),
        ("Memcpy DtoD (Device -> Device)", "copies within the GPU", "pinned memory"),
        ("Memcpy HtoD (Array -> Device)", "copy from pinned memory", "within the GPU"),
    ],
)
def test_advice_on_copies_is_for_their_direction_and_memory(tmp_path, name, words, not_said):
    found = diagnose(_analysis(tmp_path, _busy(name, 0.6), steps={1: (0, 1000)})).bottleneck

    assert found.kind is Kind.HOST_TRANSFER
    assert words in found.advice
    assert not_said not in found.advice


def test_shares_add_up_to_the_window(tmp_path):
    operations = [
        Op(NCCL, 0, 300, launched=-5),
        Op(COMPUTE, 200, 500, launched=-5),
        Op(COPY, 600, 700, launched=580),
    ]

    found = diagnose(_analysis(tmp_path, operations, steps={1: (0, 1000)})).shares

    parts = (
        found.compute,
        found.exposed_communication,
        found.exposed_memory,
        found.launch,
        found.synchronization,
        found.unexplained_idle,
    )
    assert sum(parts) == pytest.approx(1)


def test_idle_time_without_host_calls_is_reported_as_unexplained(tmp_path):
    diagnosis = diagnose(_analysis(tmp_path, [Op(COMPUTE, 0, 100)], steps={1: (0, 1000)}))

    assert diagnosis.bottleneck.kind is Kind.HOST_BOUND
    assert "no host calls" in diagnosis.bottleneck.evidence[0]


@pytest.mark.parametrize(("until", "advised"), [(50, False), (500, True)])
def test_kernels_that_take_next_to_nothing_are_not_advised_to_be_made_faster(tmp_path, until, advised):
    diagnosis = diagnose(_analysis(tmp_path, [Op(MATMUL, 0, until, launched=-5)], steps={1: (0, 1000)}))

    (found,) = [one for one in diagnosis.findings if one.kind is Kind.COMPUTE_BOUND]
    assert bool(found.advice) is advised


@pytest.mark.parametrize(("moving_us", "kind"), [(500, Kind.MEMORY_BOUND), (499, Kind.COMPUTE_BOUND)])
def test_memory_bandwidth_limits_from_half_of_the_computation(tmp_path, moving_us, kind):
    operations = [Op(COMPUTE, 0, moving_us, launched=-9), Op(MATMUL, moving_us, 1000, launched=-8)]

    found = diagnose(_analysis(tmp_path, operations, steps={1: (0, 1000)})).bottleneck

    assert found.kind is kind
    assert ("few FLOPs per byte" in " ".join(found.evidence)) is (kind is Kind.MEMORY_BOUND)


@pytest.mark.parametrize(("runs_us", "kind"), [(5, Kind.MEMORY_BOUND), (4.999, Kind.COMPUTE_BOUND)])
def test_kernels_that_are_mostly_their_own_start_do_not_show_a_limit_of_memory(tmp_path, runs_us, kind):
    operations = [Op(COMPUTE, at * 5, at * 5 + runs_us, launched=-9) for at in range(200)]

    assert diagnose(_analysis(tmp_path, operations, steps={1: (0, 1000)})).bottleneck.kind is kind


def test_of_one_rank_sends_and_receives_are_advised_to_be_seen_from_all(tmp_path):
    for name, advised in ((NCCL, "Overlap communication"), (SEND, "the traces of all ranks")):
        diagnosis = diagnose(_analysis(tmp_path, _busy(name, 0.6), steps={1: (0, 1000)}))

        (found,) = [one for one in diagnosis.findings if one.kind is Kind.COMMUNICATION]
        assert advised in found.advice


def test_the_worst_of_one_rank_is_not_named(tmp_path):
    operations = [Op(COMPUTE, at, at + 20, launched=at - 5) for at in range(0, 1000, 100)]
    calls = [Call("cudaDeviceSynchronize", at + 5, at + 80) for at in range(0, 1000, 100)]
    diagnosis = diagnose(_analysis(tmp_path, operations, calls=calls, steps={1: (0, 1000)}))

    (found,) = [one for one in diagnosis.findings if one.kind is Kind.SYNCHRONIZATION]
    assert not any("Worst" in sentence for sentence in found.evidence)


def test_copies_of_pageable_memory_are_named(tmp_path):
    diagnosis = diagnose(_analysis(tmp_path, _busy(COPY, 0.05), steps={1: (0, 1000)}))

    (found,) = [one for one in diagnosis.findings if one.kind is Kind.HOST_TRANSFER]
    assert "pin_memory" in found.advice


def test_a_capture_that_lost_its_records_has_no_bottleneck_but_says_so(tmp_path):
    export = NsysExport(tmp_path / "n.sqlite")
    export.kernel(COMPUTE, 50_000, 60_000, launched=49_000)
    export.lost("cudaLaunchKernel_v7000", 30)

    diagnosis = diagnose(analyse(read_traces([export.close()])))

    assert diagnosis.bottleneck is None
    assert [found.kind for found in diagnosis.findings] == [Kind.MISSING_TELEMETRY]
    assert "30 of 31 launches" in diagnosis.findings[0].evidence[0]


def _two_ranks(path, *, lost):
    export = NsysExport(path)
    for process in (1, 2):
        for start in range(0, 100_000, 10_000):
            export.kernel(MATMUL, start, start + 9_000, process=process, device=process, launched=start - 10)
    export.lost("cudaLaunchKernel_v7000", lost)
    return diagnose(analyse(read_traces([export.close()])))


def test_a_finding_is_less_sure_by_the_ranks_that_could_not_be_seen(tmp_path):
    whole, half = _two_ranks(tmp_path / "whole.sqlite", lost=0), _two_ranks(tmp_path / "half.sqlite", lost=10)

    assert (whole.bottleneck.kind, half.bottleneck.kind) == (Kind.COMPUTE_BOUND, Kind.COMPUTE_BOUND)
    assert half.bottleneck.confidence == whole.bottleneck.confidence / 2
    assert half.findings[0].kind is Kind.MISSING_TELEMETRY
    assert half.findings[0].confidence > whole.bottleneck.confidence


def test_kernels_sum_to_the_busy_time_when_each_instant_counts_once(tmp_path):
    operations = [
        Op(MATMUL, 0, 100, stream=1),
        Op(COMPUTE, 50, 120, stream=2),
        Op(NCCL, 80, 200, stream=3),
        Op(COPY, 110, 150, stream=4),
    ]

    (rank,) = _analysis(tmp_path, operations).ranks

    path = {row.name: row.path_s for row in rank.kernels}
    assert path[MATMUL] == pytest.approx(100e-6)
    assert path[COMPUTE] == pytest.approx(20e-6)
    assert path[COPY] == pytest.approx(30e-6)
    assert path[NCCL] == pytest.approx(50e-6)
    assert {row.name: row.tensor_cores for row in rank.kernels}[MATMUL]


def test_a_short_kernel_within_a_long_one_does_not_give_its_time_back(tmp_path):
    operations = [Op(MATMUL, 0, 100, stream=1), Op(COMPUTE, 20, 30, stream=2), Op(COMPUTE, 50, 90, stream=2)]

    (rank,) = _analysis(tmp_path, operations).ranks

    path = {row.name: row.path_s for row in rank.kernels}
    assert path == {MATMUL: pytest.approx(100e-6), COMPUTE: 0.0}


def test_kernels_are_counted_where_they_begin_and_timed_where_they_run(tmp_path):
    operations = [Op(COMPUTE, -10, 10), Op(COMPUTE, 50, 60), Op(COMPUTE, 95, 120)]

    (rank,) = _analysis(tmp_path, operations, steps={1: (0, 100)}).ranks

    (row,) = rank.kernels
    assert row.count == rank.whole.kernel_count == 2
    assert row.total_s == pytest.approx(25e-6)


def test_launches_show_their_cost_and_how_long_their_kernels_queue(tmp_path):
    operations = [Op(COMPUTE, 10, 12, launched=4), Op(COMPUTE, 30, 50, launched=22)]

    cost = _analysis(tmp_path, operations).ranks[0].launches

    assert cost.count == 2
    assert cost.call_s == pytest.approx(5e-6)
    assert cost.queue_s == pytest.approx(7e-6)
    assert cost.short_kernel_ratio == 0.5


def test_mfu_is_of_the_dense_peak_of_all_gpus(tmp_path):
    settings = TraceSettings(model_flops_per_step=8 * 989.4e12 * 1e-3 * 0.4, peaks=load_peaks())

    use = _analysis(tmp_path, _busy(COMPUTE, 0.9), settings, steps={1: (0, 1000)}, world_size=8).model_use

    assert use.mfu_ratio == pytest.approx(0.4, rel=1e-3)
    assert use.gpus == 8


def test_mfu_of_an_unknown_gpu_is_unknown(tmp_path):
    settings = TraceSettings(model_flops_per_step=1e12, peaks=load_peaks())
    trace = kineto(_busy(COMPUTE, 0.9), steps={1: (0, 1000)})
    trace["deviceProperties"][0]["name"] = "Voodoo 2"

    analysis = analyse(read_traces([write_json(tmp_path / "t.json", trace)]), settings)

    assert analysis.model_use is None

"""A capture that was made because of a rank says first why that rank is slow."""

from __future__ import annotations

import json
from dataclasses import replace

import msgspec
import numpy as np
import pytest

from perfd.aggregator.captures.trace_document import TraceDocument
from perfd.analysis.findings import Kind
from perfd.capture.selection import slow_rank_of
from perfd.cli import main
from perfd.report.sources.from_trace import report_of_trace
from perfd.trace.diagnosis import analyse, diagnose
from perfd.trace.readers.trace_files import read_traces
from tests.support.traces import COMPUTE, MATMUL, Call, Op, kineto, write_json

STEP = 4200
"""Microseconds."""


def rank(number, *, kernels=4, kernel_us=450, gap_us=0, ranges=()):
    """Computes kernels one after the other, after a gap in which its host launches nothing."""
    starts = [gap_us + 50 + at * (kernel_us + 10) for at in range(kernels)]
    operations = [Op(MATMUL, start, start + kernel_us, launched=start - 2) for start in starts]
    # The tail keeps every window as long.
    operations.append(Op(COMPUTE, STEP - 20, STEP, launched=starts[-1] - 1))
    return kineto(operations, rank=number, world_size=3, steps={1: (0, STEP)}, ranges=ranges)


def diagnosed(tmp_path, traces, slow_rank):
    paths = [write_json(tmp_path / f"{at}.json", trace) for at, trace in enumerate(traces)]
    analysis = analyse(read_traces(paths))
    return analysis, diagnose(analysis, slow_rank=slow_rank)


def test_a_host_that_is_busy_is_the_headline_though_the_window_is_mostly_computation(tmp_path):
    full = {"kernels": 9}
    _, found = diagnosed(
        tmp_path, [rank(0, **full), rank(1, kernels=6, gap_us=1300), rank(2, **full)], slow_rank=1
    )

    assert found.first.kind is Kind.STRAGGLER
    assert [culprit.id for culprit in found.first.culprits] == [1]
    assert "its host is busy with something else: 1.3 ms of 4.2 ms" in found.first.evidence[0]
    assert found.bottleneck.kind is Kind.COMPUTE_BOUND
    assert found.comparison.peers == [0, 2]
    first = found.comparison.differences[0]
    assert (first.what, first.name) == ("host", "host")
    assert first.cost_s == pytest.approx(1.3e-3, abs=0.1e-3)


def test_a_range_that_the_peers_do_not_have_is_named(tmp_path):
    slow = rank(1, kernels=6, gap_us=1300, ranges=[("checkpoint_upload", 5, 1300)])
    _, found = diagnosed(tmp_path, [rank(0, kernels=9), slow, rank(2, kernels=9)], slow_rank=1)

    assert "range checkpoint_upload, 1.3 ms longer, 1 times instead of 0" in found.comparison.answer
    assert ("range", "checkpoint_upload") in {(one.what, one.name) for one in found.comparison.differences}


def synchronizing(number, *, syncs=2, pause_us=0):
    """Two kernels that the host waits for, a pause of the host after the first wait, and two more."""
    later = 500 + pause_us
    operations = [Op(MATMUL, start, start + 400, launched=start - 2) for start in (50, later, later + 500)]
    operations.append(Op(COMPUTE, STEP - 20, STEP, launched=later + 498))
    calls = [Call("cudaStreamSynchronize", 60, 452), Call("cudaStreamSynchronize", later + 5, later + 402)]
    calls += [Call("cudaStreamSynchronize", 453 + at * 3, 455 + at * 3) for at in range(syncs - 2)]
    return kineto(operations, calls=calls, rank=number, world_size=3, steps={1: (0, STEP)})


def test_a_pause_after_a_wait_that_peers_have_too_is_the_pause(tmp_path):
    """Without the wait the host would have been ahead and hidden it; the peers' hosts do not pause."""
    traces = [synchronizing(0), synchronizing(1, pause_us=300), synchronizing(2)]
    _, found = diagnosed(tmp_path, traces, slow_rank=1)

    assert "its host is busy with something else" in found.comparison.answer
    assert found.comparison.cost_ratio == pytest.approx(300 / STEP, abs=0.02)


def test_a_pause_behind_more_waits_than_its_peers_have_is_the_waits(tmp_path):
    traces = [synchronizing(0), synchronizing(1, pause_us=300, syncs=6), synchronizing(2)]
    _, found = diagnosed(tmp_path, traces, slow_rank=1)

    assert "lets its GPU idle by waiting for it" in found.comparison.answer


def of_stage(number, stage, **work):
    group = {"pg_name": "1", "pg_desc": "PIPELINE_MODEL_PARALLEL_GROUP", "ranks": [0, 1]}
    return rank(number, **work) | {
        "distributedInfo": {"backend": "nccl", "rank": number, "world_size": 2, "pg_config": [group]}
    }


def test_a_rank_alone_in_its_stage_is_shown_beside_others_and_not_blamed_for_it(tmp_path):
    traces = [of_stage(0, 0), of_stage(1, 1, kernels=8)]
    analysis, found = diagnosed(tmp_path, traces, slow_rank=1)

    assert {one.stage for one in analysis.complete} == {0, 1}
    assert "Rank 1 computes" in found.comparison.answer
    assert found.comparison.answer.endswith("no rank of its own was captured.")
    assert Kind.STRAGGLER not in {one.kind for one in found.findings}


PAUSE_NS = 20_000_000


def warped(trace, at_ns, number):
    """The trace of a real rank as if each moment had lasted 20 ms: what is open then is longer."""

    def moved(times_ns, side):
        return times_ns + PAUSE_NS * np.searchsorted(at_ns, times_ns, side=side)

    operations, calls = (
        replace(one, start_ns=moved(one.start_ns, "right"), end_ns=moved(one.end_ns, "left"))
        for one in (trace.operations, trace.calls)
    )
    return replace(trace, rank=number, operations=operations, calls=calls, steps=(), phases=(), groups=())


def test_pauses_of_one_of_two_real_ranks_are_found_at_their_length(shared):
    """One rank's own capture twice: its host pauses ten times, and the other one waits in NCCL meanwhile."""
    (real,) = [trace for trace in read_traces(shared.kineto) if trace.rank == 1]
    operations, calls = real.operations, real.calls
    called = dict(zip(calls.correlation.tolist(), calls.start_ns.tolist(), strict=True))
    launched = np.array([called.get(one, -1) for one in operations.correlation.tolist()])
    idle_since = np.maximum.accumulate(operations.end_ns)[:-1]
    # Launches for an idle GPU, between the host's other calls.
    alone = launched[1:][(launched[1:] > idle_since) & (operations.start_ns[1:] - launched[1:] < 40_000)]
    alone = [at for at in alone if not ((calls.start_ns < at) & (calls.end_ns > at)).any()]
    pauses = np.array(alone)[np.linspace(0, len(alone) - 1, 10).astype(int)] - 1
    kernels = [at for at, name in enumerate(operations.name) if real.classes[name] == "communication"]
    waits = operations.start_ns[np.array(kernels)[np.linspace(2, len(kernels) - 3, 10).astype(int)]] + 1

    found = diagnose(analyse([warped(real, waits, 0), warped(real, pauses, 1)]), slow_rank=1)

    assert found.first.kind is Kind.STRAGGLER
    assert [culprit.id for culprit in found.first.culprits] == [1]
    assert "its host is busy with something else" in found.comparison.answer
    first = found.comparison.differences[0]
    assert (first.what, first.name) == ("host", "host")
    assert first.cost_s == pytest.approx(10 * PAUSE_NS / 1e9, rel=0.1)


def test_slow_input_of_the_rank_is_distinguished_from_other_work_of_its_host(tmp_path):
    slow = rank(1, kernels=6, gap_us=1300, ranges=[("get_batch", 5, 1340)])
    full = [rank(at, kernels=9, ranges=[("get_batch", 0, 1)]) for at in (0, 2)]
    _, found = diagnosed(tmp_path, [full[0], slow, full[1]], slow_rank=1)

    assert found.comparison.answer.startswith("Rank 1 waits for input: 1.3 ms of 4.2 ms, its peers")
    assert found.first.kind is Kind.DATA_LOADING
    assert Kind.STRAGGLER in {effect.kind for effect in found.first.effects}


@pytest.mark.parametrize(
    ("work", "how"),
    [
        ({"kernel_us": 900}, "the same kernels take longer"),
        ({"kernels": 8}, "it has more work, 9 kernels instead of 5"),
    ],
)
def test_slower_kernels_are_distinguished_from_more_kernels(tmp_path, work, how):
    _, found = diagnosed(tmp_path, [rank(0), rank(1), rank(2, **work)], slow_rank=2)

    assert found.comparison.answer.startswith("Rank 2 computes")
    assert how in found.comparison.answer
    assert f"kernel {MATMUL[:20]}" in found.comparison.answer


def test_a_rank_that_does_as_its_peers_do_is_not_blamed_because_it_was_asked_for(tmp_path):
    analysis, found = diagnosed(tmp_path, [rank(0), rank(1), rank(2)], slow_rank=1)

    assert Kind.STRAGGLER not in {one.kind for one in found.findings}
    assert found.answer == (
        "In this capture rank 1 does as its peers do (ranks 0, 2): nothing takes it 1% of the window longer."
    )
    assert report_of_trace(analysis, found).headline == found.answer


@pytest.mark.parametrize(
    ("traces", "missing"), [([0, 2], "records are not all there"), ([1], "no peer of it")]
)
def test_what_is_missing_for_an_answer_is_said(tmp_path, traces, missing):
    _, found = diagnosed(tmp_path, [rank(number) for number in traces], slow_rank=1)

    assert missing in found.answer


def test_the_verb_and_the_report_of_a_capture_answer_first(tmp_path, capsys):
    for number in range(3):
        write_json(tmp_path / f"{number}.json", rank(number, kernel_us=900 if number == 2 else 450))

    assert main(["analyze", str(tmp_path), "--slow-rank", "2", "--json"]) == 0

    printed = capsys.readouterr().out
    document = msgspec.json.decode(printed, type=TraceDocument)
    assert document.words().startswith("A straggler limits this job. Rank 2 computes")
    assert json.loads(printed)["comparison"]["differences"][0]["cost_s"] > 1e-3


@pytest.mark.parametrize(("labels", "expected"), [({"rank": "7"}, 7), ({"rank": ""}, None), ({}, None)])
def test_the_alert_says_which_rank_a_capture_is_about(labels, expected):
    assert slow_rank_of(labels) == expected

"""A capture that was made because of a rank says first why that rank is slow."""

from __future__ import annotations

import json

import msgspec
import pytest

from perfd.aggregator.captures.trace_document import TraceDocument
from perfd.analysis.findings import Kind
from perfd.capture.selection import slow_rank_of
from perfd.cli import main
from perfd.report.sources.from_trace import report_of_trace
from perfd.trace.diagnosis import analyse, diagnose
from perfd.trace.readers.trace_files import read_traces
from tests.support.traces import COMPUTE, MATMUL, Op, kineto, write_json

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


def test_slow_input_of_the_rank_is_told_from_other_work_of_its_host(tmp_path):
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
def test_slower_kernels_are_told_from_more_kernels(tmp_path, work, how):
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

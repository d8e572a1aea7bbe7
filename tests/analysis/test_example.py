"""The worked example of docs/analysis.md, through agent, wire and aggregator, and as the page prints it."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfd.analysis.findings import Kind
from perfd.session.replay_session import ReplayOptions, replay
from perfd.session.session_config import load_session
from perfd.session.text.summary_text import in_words

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "docs/examples/70b-64xh100"


def test_the_worked_example_is_what_the_page_says():
    result = replay(ReplayOptions(recording=EXAMPLE, config=load_session(EXAMPLE / "session.yaml")))

    (summary,) = result.summaries
    assert summary.efficiency.mfu_ratio == pytest.approx(0.28, abs=5e-4)
    assert summary.efficiency.flops_check is not None
    assert summary.efficiency.flops_check.agrees
    assert summary.pipeline.bubble_theory_ratio == pytest.approx(1 / 9)
    assert summary.communication.share_ratio == pytest.approx(450 / 1605)
    assert summary.communication.ring_estimate_s == pytest.approx(0.5405, abs=1e-3)
    assert summary.bottleneck.kind is Kind.COMMUNICATION
    said = " ".join(in_words(result.summaries, [], []).split())
    page = (ROOT / "docs/analysis.md").read_text()
    shown = page.split("```text\n", 1)[1].split("```", 1)[0]
    for part in shown.split("...\n"):
        assert " ".join(part.split()) in said


def test_without_the_networks_speed_the_ring_formula_is_left_out():
    (summary,) = replay(ReplayOptions(recording=EXAMPLE)).summaries

    assert summary.communication.ring_estimate_s is None
    assert summary.bottleneck.kind is Kind.COMMUNICATION

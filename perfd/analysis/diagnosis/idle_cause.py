"""Why GPUs had nothing to run while a job was captured: the host launched late, or waited for them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from perfd.analysis.communication import CaptureEvidence, not_used
from perfd.analysis.findings import Kind, advice
from perfd.formatting import percent
from perfd.thresholds import THRESHOLDS


@dataclass(frozen=True, slots=True, kw_only=True)
class IdleCause:
    """The larger of the two reasons, by a capture that stands for now."""

    kind: Kind
    gain_ratio: float
    """Of a step."""
    least_ratio: float
    """What is less is not worth a word."""
    ranks: Sequence[int]
    evidence: Sequence[str]
    advice: str


def shown_idle(capture: CaptureEvidence | None) -> IdleCause | None:
    """Why the GPUs idled in the newest capture; None when it is not used or they hardly did."""
    if capture is None or not capture.used:
        return None
    launch, waited = capture.launch_ratio(), capture.of_now(capture.shares.synchronization_ratio)
    late = launch >= THRESHOLDS.launch_idle_ratio and launch >= waited
    if not late and waited < THRESHOLDS.synchronization_ratio:
        return None
    ranks = capture.shares.ranks
    evidence = [_late(capture, launch), _waited(capture, waited)]
    return IdleCause(
        kind=Kind.LAUNCH_BOUND if late else Kind.SYNCHRONIZATION,
        gain_ratio=launch if late else waited,
        least_ratio=THRESHOLDS.launch_idle_ratio if late else THRESHOLDS.synchronization_ratio,
        ranks=ranks,
        evidence=evidence if late else evidence[::-1],
        advice=_launch_earlier(capture) if late else advice.SYNCHRONIZATION,
    )


def not_shown(capture: CaptureEvidence | None) -> tuple[str, ...]:
    """What to say of a capture that does not explain why GPUs idle: it is not used, or shows nothing."""
    if capture is None or not capture.used:
        return not_used(capture)
    if capture.shares.unexplained_idle_ratio >= THRESHOLDS.launch_idle_ratio:
        unexplained = percent(capture.of_now(capture.shares.unexplained_idle_ratio))
        return (f"When traced it was {unexplained}; no host call explains it ({capture.source}).",)
    idle = capture.launch_ratio() + capture.of_now(capture.shares.synchronization_ratio)
    return (f"The host kept GPUs idle in {percent(idle)} of a step only when traced ({capture.source}).",)


def _late(capture: CaptureEvidence, launch: float) -> str:
    return (
        f"In {percent(launch)} of a step GPUs have nothing to run because the host has not launched"
        f" ({capture.source})."
    )


def _waited(capture: CaptureEvidence, waited: float) -> str:
    return (
        f"In {percent(waited)} they idle because the host waited for them before it launched more work"
        f" ({capture.source})."
    )


def _launch_earlier(capture: CaptureEvidence) -> str:
    long_gaps = capture.shares.long_gaps_ratio > capture.shares.launch_ratio / 2
    return advice.LONG_GAPS if long_gaps else advice.LAUNCH_LESS

"""Why GPUs had nothing to run while a job was captured: the host launched late, or waited for them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from perfd.analysis.communication import CaptureEvidence, not_used
from perfd.analysis.diagnosis.findings import Kind
from perfd.formatting import percent

_LAUNCH = 0.10
_SYNCHRONIZATION = 0.05
"""The thresholds of docs/traces.md for the same classes of a trace."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IdleCause:
    """The larger of the two reasons, by a capture that stands for now."""

    kind: Kind
    lost_ratio: float
    """Of a step."""
    least_ratio: float
    """What is less is not worth a word."""
    ranks: Sequence[int]
    evidence: Sequence[str]
    recommendation: str


def shown_idle(capture: CaptureEvidence | None) -> IdleCause | None:
    """Why the GPUs idled in the newest capture; None when it is not used or they hardly did."""
    if capture is None or not capture.used:
        return None
    launch, waited = capture.launch_ratio(), capture.of_now(capture.shares.synchronization_ratio)
    late = launch >= _LAUNCH and launch >= waited
    if not late and waited < _SYNCHRONIZATION:
        return None
    ranks = capture.shares.ranks
    evidence = [_late(capture, launch), _waited(capture, waited)]
    return IdleCause(
        kind=Kind.LAUNCH_BOUND if late else Kind.SYNC_BOUND,
        lost_ratio=launch if late else waited,
        least_ratio=_LAUNCH if late else _SYNCHRONIZATION,
        ranks=ranks,
        evidence=evidence if late else evidence[::-1],
        recommendation=_launch_earlier(capture) if late else _synchronise_less(),
    )


def not_shown(capture: CaptureEvidence | None) -> tuple[str, ...]:
    """What to say of a capture that does not explain why GPUs idle: it is not used, or shows nothing."""
    if capture is None or not capture.used:
        return not_used(capture)
    if capture.shares.unexplained_idle_ratio >= _LAUNCH:
        unexplained = percent(capture.of_now(capture.shares.unexplained_idle_ratio))
        return (f"When traced it was {unexplained}; no host call tells why ({capture.source}).",)
    idle = capture.launch_ratio() + capture.of_now(capture.shares.synchronization_ratio)
    return (f"The host kept GPUs idle in {percent(idle)} of a step only when traced ({capture.source}).",)


def _late(capture: CaptureEvidence, launch: float) -> str:
    return (
        f"In {percent(launch)} of a step GPUs have nothing to run because the host has not launched"
        f" ({capture.source})."
    )


def _waited(capture: CaptureEvidence, waited: float) -> str:
    return f"In {percent(waited)} they run dry because the host had waited for them ({capture.source})."


def _launch_earlier(capture: CaptureEvidence) -> str:
    if capture.shares.long_gaps_ratio > capture.shares.launch_ratio / 2:
        return (
            "Most of it is in gaps over 100 us, in which the host does something else: find out what"
            " (`perfd capture show ID`, py-spy): input, logging, Python's garbage collector, a lock."
        )
    return (
        "The gaps are short, so launching takes longer than running: use CUDA graphs or torch.compile, fuse"
        " small kernels, or take work off the thread that launches."
    )


def _synchronise_less() -> str:
    return (
        "Remove synchronisations from the step: .item(), .cpu(), prints of tensors, barriers of timers,"
        " blocking copies."
    )

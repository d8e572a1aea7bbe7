"""Ranks that do not move, and ranks that say nothing."""

from __future__ import annotations

from perfd.analysis.diagnosis.findings import Culprit, Finding, JobEvidence, Kind
from perfd.formatting import rank_names

_SHOWN = 8


def judge_hang(facts: JobEvidence) -> Finding | None:
    """A job that stands still, with the rank that did not come where something tells; None if it moves."""
    hang = facts.hang
    if hang is None:
        return None
    if hang.culprits:
        who = rank_names(hang.culprits)
        advice = (
            f"Look at {who}: whether its process runs (py-spy dump shows where it stands), XID errors and the"
            " node's kernel log. Restart from the last checkpoint without that node if it does not recover."
        )
    else:
        advice = (
            "Take a dump of PyTorch's flight recorder (TORCH_NCCL_TRACE_BUFFER_SIZE) and py-spy dumps of all"
            " ranks: the one that is in another place than the others is late."
        )
    sure = 0.8 if hang.sure else 0.6
    return Finding(
        kind=Kind.HANG,
        confidence=0.9 if hang.sure and hang.sources > 1 else sure,
        culprits=tuple(Culprit(kind="rank", id=rank) for rank in hang.culprits[:_SHOWN]),
        evidence=tuple(hang.evidence),
        recommendation=advice,
        lost_ratio=1.0,
    )


def judge_missing(facts: JobEvidence) -> Finding | None:
    """Ranks that say nothing while others do, who are no culprits: what depends on all is not judged."""
    evidence = []
    if facts.nccl.missing_ranks:
        evidence.append(
            f"No NCCL timings came from {rank_names(facts.nccl.missing_ranks)} ({facts.nccl.source}), so"
            " nobody of their stage is named for waiting in collectives."
        )
    if facts.nccl.lost_operations and (evidence or facts.nccl.wait_ratio is None):
        # Some lost of many change nothing: the rest is matched all the same.
        evidence.append(
            f"{facts.nccl.lost_operations} NCCL operations were not seen: shares of communication are lower"
            " bounds."
        )
    if facts.nccl.untimed_ranks:
        evidence.append(
            f"{rank_names(facts.nccl.untimed_ranks).capitalize()} told no times on the GPU although others"
            f" did ({facts.nccl.source}), so shares of time are unknown, and they are compared with nobody."
        )
    if facts.untimed and not facts.wrong_times:
        evidence.append(
            f"No rank tells times on the GPU ({facts.nccl.source}), so shares of time are unknown: NCCL has"
            " them since 2.27, and perfd asks for them unless its `gpu_time` is off."
        )
    evidence += [f"{rank_names(ranks).capitalize()}: {said}" for said, ranks in facts.wrong_times.items()]
    if facts.silent_gpu_ranks:
        evidence.append(
            f"Nobody reads the GPUs of {rank_names(facts.silent_gpu_ranks)} (NVML), so nobody is named by the"
            " activity of GPUs."
        )
    if not evidence:
        return None
    return Finding(
        kind=Kind.MISSING_TELEMETRY, confidence=0.9, evidence=evidence, recommendation=_advice(facts)
    )


def _advice(facts: JobEvidence) -> str:
    """What each kind of silence needs."""
    advice = []
    if facts.nccl.missing_ranks or facts.silent_gpu_ranks:
        advice.append(
            "Run an agent on every node of the job, and look at perfd_agent_up and perfd_collector_success of"
            " the nodes that these ranks run on."
        )
    if facts.nccl.untimed_ranks or facts.untimed or facts.wrong_times:
        advice.append("Use one NCCL, 2.27 or newer, and one configuration of perfd on all nodes.")
    return " ".join(advice) or (
        "Look at perfd_agent_up of the job's nodes, and whether their agents get time on a core: the plugin"
        " writes over what was not read in time."
    )

"""What `perfd analyze --json` prints: `perfd.trace/2`. Unknown values are null; keys only ever get more."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from perfd.analysis.findings import finding_json
from perfd.trace.breakdown import CollectiveRow, CriticalPath, KernelRow, RankBreakdown, busy_by_class
from perfd.trace.diagnosis.slow_rank_cause import PeerComparison
from perfd.trace.diagnosis.trace_analysis import RankAnalysis, TraceAnalysis
from perfd.trace.diagnosis.trace_bottleneck import Diagnosis

SCHEMA = "perfd.trace/2"
SCHEMAS = ("perfd.trace/1", SCHEMA)
"""Those whose numbers are alike: /1 has other kinds of findings."""
_LATE_RATIO = 0.05
"""Of the window, in which GPUs still work on an earlier step: with less there is no note about it. Chosen."""
_PATH_PARTS = 100
"""Of the critical path, in the document; the longest."""


def to_json(analysis: TraceAnalysis, diagnosis: Diagnosis) -> dict[str, Any]:
    """The whole analysis as an object of plain values."""
    return {
        "schema": SCHEMA,
        "ranks": [_rank(rank, analysis) for rank in analysis.ranks],
        "bottleneck": finding_json(diagnosis.bottleneck) if diagnosis.bottleneck else None,
        "cause": finding_json(diagnosis.cause) if diagnosis.cause else None,
        "findings": [finding_json(found) for found in diagnosis.findings],
        "comparison": _comparison(diagnosis.comparison),
        "shares": asdict(diagnosis.shares) if diagnosis.shares else None,
        "model_use": asdict(analysis.model_use) if analysis.model_use else None,
        "pipeline": [asdict(stall) | {"stall_ratio": stall.stall_ratio} for stall in analysis.stages],
        "critical_path": _path(analysis.path) if analysis.path else None,
        "waiting": [
            {
                "group": group.group,
                "ranks": list(group.ranks),
                "barrier": group.barrier,
                "operations": group.blame.operations,
                "transfer_s": group.blame.transfer_s,
                "waited_s": group.blame.waited_s.tolist(),
                "caused_s": group.blame.caused_s.tolist(),
            }
            for group in analysis.collectives.waiting
        ],
        "unmatched": list(analysis.collectives.unmatched),
    }


def _comparison(found: PeerComparison | None) -> dict[str, Any] | None:
    if found is None:
        return None
    return asdict(found) | {
        "differences": [asdict(one) | {"cost_s": one.cost_s} for one in found.differences]
    }


def _path(path: CriticalPath) -> dict[str, Any]:
    return {
        "length_s": path.length_s,
        "end_rank": path.end_rank,
        "ranks": {str(rank): seconds for rank, seconds in path.by_rank().items()},
        "classes": path.by_class(),
        "steps": [{"step": step, "classes": classes} for step, classes in path.by_step().items()],
        "parts": [
            {
                "rank": part.rank,
                "step": part.step,
                "class": part.part_class,
                "name": part.name,
                "count": part.count,
                "total_s": part.total_s,
            }
            for part in path.parts[:_PATH_PARTS]
        ],
    }


def breakdown_json(part: RankBreakdown) -> dict[str, Any]:
    """The keys that a rank and each of its steps share."""
    plain = asdict(part)
    plain.pop("step")
    return plain


def _rank(rank: RankAnalysis, analysis: TraceAnalysis) -> dict[str, Any]:
    timeline = rank.timeline
    lost = timeline.losses
    return {
        "rank": rank.rank,
        "file": timeline.trace.file,
        "gpu": timeline.trace.gpu,
        "device": timeline.trace.device,
        "stage": rank.stage,
        **breakdown_json(rank.whole),
        "window": {
            "source": timeline.window.source,
            "start_ns": timeline.window.start_ns,
            "end_ns": timeline.window.end_ns,
            "epoch_ns": timeline.trace.epoch_ns,
            "dropped_steps": list(timeline.window.dropped_steps),
        },
        "complete": timeline.complete,
        "lost_launches_ratio": lost.ratio if lost else None,
        "profiler_overhead_s": rank.overhead_s,
        "steps": [{"step": step.step, **breakdown_json(step)} for step in rank.steps],
        "kernels": [_kernel(row) for row in rank.kernels],
        "classes": busy_by_class(rank.kernels),
        "collectives": [
            _collective(row, analysis.link_bytes_per_s)
            for row in analysis.collectives.by_rank.get(rank.rank, ())
        ],
        "phases": [asdict(row) for row in rank.phases],
        "launches": asdict(rank.launches) if rank.launches else None,
        "sync_points": [asdict(point) for point in rank.syncs],
        "notes": notes(rank),
    }


def notes(rank: RankAnalysis) -> list[str]:
    """What a reader of a rank's numbers should know, as sentences."""
    timeline = rank.timeline
    found = list(timeline.trace.notes)
    dropped = timeline.window.dropped_steps
    if dropped:
        found.append(f"Steps {_listed(dropped)} are cut by the capture and left out.")
    if timeline.window.source == "steps" and timeline.late_ratio > _LATE_RATIO:
        found.append(
            f"{timeline.late_ratio:.0%} of the GPU's work came after the host had ended its last step and is"
            " left out: the host runs ahead. Let it wait for the GPU at the end of each step to see it all."
        )
    if timeline.losses and timeline.losses.lost:
        state = "its idle time is not known" if not timeline.complete else "few enough to ignore"
        lost, launches = timeline.losses.lost, timeline.losses.launches
        found.append(f"{lost} of {launches} launches have no kernel in the trace: {state}.")
    if timeline.complete and rank.whole.idle is None:
        found.append("The trace has no host calls, so idle time cannot be explained.")
    return found


def _listed(numbers: Sequence[int]) -> str:
    return ", ".join(str(number) for number in numbers)


def _kernel(row: KernelRow) -> dict[str, Any]:
    return {
        "name": row.name,
        "class": row.kernel_class,
        "count": row.count,
        "total_s": row.total_s,
        "path_s": row.path_s,
        "tensor_cores": row.tensor_cores,
    }


def _collective(row: CollectiveRow, link_bytes_per_s: float | None) -> dict[str, Any]:
    least = row.least_time_of(link_bytes_per_s)
    return {
        "group": row.group,
        "operation": row.operation,
        "count": row.count,
        "total_s": row.total_s,
        "exposed_s": row.exposed_s,
        "transfer_s": row.transfer_s,
        "wait_s": row.wait_s,
        "barrier": row.barrier,
        "size_bytes": row.size_bytes,
        "matched_count": row.matched_count,
        "matching": row.matching.value,
        "group_ranks": list(row.group_ranks),
        "bus_bytes_per_s": least.bus_bytes_per_s if least else None,
        "algorithm_bytes_per_s": least.algorithm_bytes_per_s if least else None,
        "minimum_s": least.minimum_s if least else None,
    }

"""How much of a step is communication, and how much of it nothing hides: by timers, NCCL or a capture."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from perfd.analysis.collectives import NcclSummary
from perfd.analysis.communication.evidence_from_capture import CaptureEvidence
from perfd.analysis.communication.exposed_by_dimension import (
    KERNELS,
    Dimension,
    captured_dimensions,
    known_in_all,
    seen_dimensions,
    timed_dimensions,
    timers_cover_all,
)
from perfd.analysis.data.job_data import Floats
from perfd.analysis.data.robust_stats import median_of, ratio
from perfd.analysis.flops.model_shape import parameter_counts
from perfd.analysis.steps import COMMUNICATION, POINT_TO_POINT, Timers, share, usual
from perfd.model import JobDescription, ParallelLayout

_TIMERS = "timers"
"""How the source of a share that they show begins."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Communication:
    """Shares of the step that collectives take; None if no timer shows them."""

    share_ratio: float | None = None
    """Time in NCCL's kernels, the mean over ranks, if the plugin reports it; else time in the collectives
    that the log times, the longest rank's, which is a lower bound of all communication; else the newest
    capture's."""
    transfer_ratio: float | None = None
    """The part of it that moves data; only by the plugin or a capture."""
    wait_ratio: float | None = None
    """The part of it that waits for other ranks; only by the plugin or a capture."""
    exposed_ratio: float | None = None
    """The part with no computation beside it: by timers when tensor, context and expert groups are of one,
    or by its dimensions if these show it without a capture; else as the newest capture showed it."""
    exposed_source: str | None = None
    overlap_ratio: float | None = None
    """Of communication, what was not exposed in that capture; None where that is not needed."""
    dimensions: Sequence[Dimension] = ()
    """By parallel dimension, the largest first. A share by timers does not include a pipeline's."""
    source: str | None = None
    least_ratio: float | None = None
    """By timers, the rank's with the least time in them: as it waits least, most of that moves data."""
    seconds: float | None = None
    """Median seconds a step."""
    p2p_wait_ratio: float | None = None
    """Transfers between stages with the waiting in them: part of the pipeline's stall. The longest
    rank's where timers are by rank; of minima and maxima the longest row, which is a lower bound."""
    gradient_bytes: float | None = None
    """What each rank reduces over its data-parallel group."""
    bus_bytes_per_s: float | None = None
    """What the gradient collectives' time amounts to, by the ring formula."""
    gradient_s: float | None = None
    """Median seconds a step of reducing gradients over the data-parallel group."""
    link_bytes_per_s: float | None = None
    """What the slowest link of that group carries in one direction."""
    ring_estimate_s: float | None = None
    """What the ring formula gives at that bandwidth, without latency or contention."""
    gradients_overlapped: bool | None = None
    """Whether gradients are reduced beside the backward pass, by the job's arguments; None without them."""

    @property
    def left_out(self) -> tuple[str, ...]:
        """The dimensions that `share_ratio` does not hold: of timers it counts those of collectives only."""
        if self.share_ratio is None or not (self.source or "").startswith(_TIMERS):
            return ()
        return tuple(one.group or "others" for one in self.dimensions if one.group != "dp")


def communication(
    timers: Timers,
    step_time_s: Floats,
    description: JobDescription | None,
    link_bytes_per_s: float | None = None,
) -> Communication:
    """Derive the communication of steady steps; `link_bytes_per_s` is one direction of a rank's slowest link.

    A timer inside another that is counted is left out. Timers synchronize the
    device at both ends, so what they show is exposed by construction; a
    collective that overlaps with computation shows its tail only.
    """
    counted = _counted(timers)
    seconds = np.sum(list(counted.values()), axis=0) if counted else None
    gradient_s = median_of(_gradient_seconds(counted)) if counted else None
    size = gradient_bytes(description)
    ranks = _gradient_ranks(description.parallel) if description else None
    moved = ring_traffic_bytes(size, ranks) if size and ranks else None
    overlapped = _overlaps(description)
    total_share = share(seconds, step_time_s)
    inner = description is None or not _no_inner_groups(description.parallel)
    exposed = None if inner or not timers_cover_all(description) else total_share
    source = _source(list(counted), overlapped=overlapped)
    p2p_ratio = _p2p_ratio(timers, step_time_s)
    shares = {name: share(column, step_time_s) or 0.0 for name, column in counted.items()}
    return Communication(
        share_ratio=total_share,
        least_ratio=_least_ratio(timers, list(counted), step_time_s),
        exposed_ratio=exposed,
        exposed_source=None if exposed is None else source,
        dimensions=timed_dimensions(shares, p2p_ratio, description),
        source=source,
        seconds=median_of(seconds) if seconds is not None else None,
        p2p_wait_ratio=p2p_ratio,
        gradient_bytes=size,
        bus_bytes_per_s=None if overlapped else ratio(moved, gradient_s),
        gradient_s=gradient_s,
        link_bytes_per_s=link_bytes_per_s,
        ring_estimate_s=ratio(moved, link_bytes_per_s),
        gradients_overlapped=overlapped if description and description.arguments else None,
    )


def with_kernels(
    timed: Communication, kernels: NcclSummary, description: JobDescription | None
) -> Communication:
    """What the log's timers show, with the shares that NCCL's kernels were seen to take."""
    dimensions = seen_dimensions(timed.dimensions, kernels.dimensions, description)
    if kernels.share_ratio is None:
        seen = {one.group for one in dimensions}
        return replace(
            timed, dimensions=(*dimensions, *(one for one in timed.dimensions if one.group not in seen))
        )
    exposed, exposed_source = _exposed_in_kernels(timed, dimensions, kernels.share_ratio)
    return replace(
        timed,
        share_ratio=kernels.share_ratio,
        transfer_ratio=kernels.transfer_ratio,
        wait_ratio=kernels.wait_ratio,
        exposed_ratio=exposed,
        exposed_source=exposed_source,
        dimensions=dimensions,
        source=KERNELS,
    )


def with_capture(
    seen: Communication, kernels: NcclSummary, capture: CaptureEvidence | None, parallel: ParallelLayout
) -> Communication:
    """The same, with the exposed part of a capture where nothing else shows it.

    The share of NCCL's kernels is current: the exposed part of it is taken to be as large as in the capture.
    Without it the capture's own shares stand.
    """
    complete = kernels.share_ratio is not None
    dimensions = captured_dimensions(seen.dimensions, capture, parallel, complete=complete)
    seen = replace(seen, dimensions=dimensions)
    if capture is None or not capture.used or seen.exposed_ratio is not None:
        return seen
    shares = capture.shares
    then = capture.of_now(shares.communication_ratio)
    if then <= 0:
        return seen
    exposed = capture.of_now(shares.exposed_communication_ratio)
    seen = replace(seen, overlap_ratio=1 - exposed / then, exposed_source=capture.source)
    if kernels.share_ratio is not None:
        exposed, source = _summed(dimensions, kernels.share_ratio) or capture.exposed_now(
            then, exposed, kernels.share_ratio
        )
        return replace(seen, exposed_ratio=exposed, exposed_source=source)
    if seen.share_ratio is not None:
        return replace(seen, exposed_ratio=exposed)
    return replace(
        seen,
        share_ratio=then,
        exposed_ratio=exposed,
        transfer_ratio=None if shares.waiting_ratio is None else then * (1 - shares.waiting_ratio),
        wait_ratio=None if shares.waiting_ratio is None else then * shares.waiting_ratio,
        source=capture.source,
    )


def ring_traffic_bytes(size_bytes: float, ranks: int) -> float:
    """Bytes that each rank sends in a ring all-reduce: 2 (n - 1) / n of the buffer.

    From Patarasuk and Yuan 2009; the same factor as nccl-tests' bus bandwidth.
    """
    return 2 * (ranks - 1) / ranks * size_bytes


def gradient_bytes(description: JobDescription | None) -> float | None:
    """Bytes of gradients that one rank reduces, or None when it cannot be known.

    Parameters are spread over the tensor and pipeline groups. Megatron-LM
    reduces in fp32 under bf16 unless `--grad-reduce-in-bf16` is given; for other
    frameworks the width is not known. Experts are reduced over other groups.
    """
    if description is None or description.model is None or description.model.moe is not None:
        return None
    parallel = description.parallel
    if not (parallel.tp and parallel.pp) or not description.framework.lower().startswith("megatron"):
        return None
    untied = description.arguments.get("untie_embeddings_and_output_weights") == "True"
    parameters = parameter_counts(description.model, untied_embeddings=untied).total
    width = 2 if description.arguments.get("grad_reduce_in_bf16") == "True" else 4
    return parameters / (parallel.tp * parallel.pp) * width


def _counted(timers: Timers) -> dict[str, Floats]:
    columns = {name: timers.max_s(name) for name in COMMUNICATION}
    present = usual({name: values for name, values in columns.items() if values is not None})
    return {name: values for name, values in present.items() if COMMUNICATION[name] not in present}


def _least_ratio(timers: Timers, names: Sequence[str], step_time_s: Floats) -> float | None:
    columns = [values for name in names if (values := timers.min_s(name)) is not None]
    return share(np.sum(columns, axis=0), step_time_s) if columns and len(columns) == len(names) else None


def _gradient_seconds(counted: dict[str, Floats]) -> Floats:
    """The data-parallel reduction alone: without embeddings, norms and parameters."""
    main = ("all-grads-sync", "grads-all-reduce", "backward_allreduce", "bwd_allreduce")
    return next((counted[name] for name in main if name in counted), np.full(1, np.nan))


def _gradient_ranks(parallel: ParallelLayout) -> int | None:
    if not parallel.dp:
        return None
    ranks = parallel.dp * (parallel.cp or 1)
    return ranks if ranks > 1 else None


def _overlaps(description: JobDescription | None) -> bool:
    return bool(description and description.arguments.get("overlap_grad_reduce") == "True")


def _no_inner_groups(parallel: ParallelLayout) -> bool:
    """Whether no collective can hide inside the compute timers."""
    return all(size == 1 for size in (parallel.tp, parallel.cp, parallel.ep))


def _exposed_in_kernels(
    timed: Communication, dimensions: Sequence[Dimension], share_ratio: float
) -> tuple[float | None, str | None]:
    """The exposed part of the time in kernels, and its source.

    Timers of gradients show nothing of a pipeline's kernels, which are in that time as well.
    """
    summed = _summed(dimensions, share_ratio)
    if summed is not None:
        return summed
    if timed.exposed_ratio is None or any(one.group == "pp" for one in dimensions):
        return None, None
    return min(share_ratio, timed.exposed_ratio), timed.exposed_source


def _summed(dimensions: Sequence[Dimension], share_ratio: float) -> tuple[float, str] | None:
    """The exposed part of all dimensions, and its source; None unless known of nearly all."""
    known = known_in_all(dimensions, share_ratio)
    if not known:
        return None
    whole = min(share_ratio, sum(one.exposed_ratio or 0.0 for one in known))
    groups: dict[str, list[str]] = {}
    for one in known:
        groups.setdefault(one.exposed_source or "", []).append(one.group or "others")
    if len(groups) == 1:
        return whole, known[0].exposed_source or ""
    reported = (f"{', '.join(names)} by {source}" for source, names in groups.items())
    return whole, f"dimensions: {'; '.join(reported)}"


def _source(names: list[str], *, overlapped: bool) -> str | None:
    if not names:
        return None
    tail = " (overlap_grad_reduce: what is left exposed)" if overlapped else ""
    return f"{_TIMERS}: {', '.join(names)}{tail}"


def _p2p_ratio(timers: Timers, step_time_s: Floats) -> float | None:
    columns = {name: timers.max_s(name) for name in POINT_TO_POINT}
    present = usual({name: values for name, values in columns.items() if values is not None})
    by_rank = [ranks for name in present if (ranks := timers.by_rank_s(name)) is not None]
    if by_rank:
        # A stage has only some of the rows: an absent one means zero, all absent means unknown.
        some = np.isfinite(by_rank).any(axis=0)
        waited = np.where(some, np.nansum(by_rank, axis=0), np.nan)
        return share(np.fmax.reduce(waited, axis=1), step_time_s)
    longest = [share(values, step_time_s) for values in present.values()]
    return max((value for value in longest if value is not None), default=None)

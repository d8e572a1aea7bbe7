"""Communication by parallel dimension: how much of a step it takes, and how much of that is exposed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from perfd.analysis.collectives import NcclDimension
from perfd.analysis.communication.evidence_from_capture import CaptureEvidence
from perfd.analysis.layout import ALL_REDUCE, ALL_TO_ALL, WORLD, dimension_name, group_name
from perfd.analysis.steps import DATA_PARALLEL
from perfd.model import GroupShares, JobDescription, ParallelLayout

KERNELS = "nccl plugin: kernels on the GPU"
_WAITS_FOR_EACH = "schedule: without interleaving Megatron-LM waits for each send and receive"
_LITTLE = 0.01
"""Of a step: what is unknown of less changes nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dimension:
    """One parallel dimension's communication, as shares of a step; a ratio is None if unknown."""

    group: str | None
    """`dp`, `tp`, `pp`, `cp`, `ep`, or `world` for all ranks; a group that fits none of them has the name
    that traces give it, and None where they are not asked."""
    share_ratio: float
    """Time in NCCL's kernels, the mean over ranks, if the plugin reports it; else in its timers, the longest
    rank's; else as the newest capture showed it. Two dimensions may take the same time."""
    transfer_ratio: float | None = None
    wait_ratio: float | None = None
    source: str
    exposed_ratio: float | None = None
    """The part with no computation beside it."""
    exposed_source: str | None = None
    missing: str | None = None
    """Why the exposed part is not known, as half a sentence."""

    @property
    def lost_ratio(self) -> float | None:
        """What faster links, or computing meanwhile, could win back: not the waiting for other ranks."""
        if self.exposed_ratio is None:
            return None
        return (
            self.exposed_ratio
            if self.transfer_ratio is None
            else min(self.exposed_ratio, self.transfer_ratio)
        )


def timed_dimensions(
    shares: Mapping[str, float], p2p_ratio: float | None, description: JobDescription | None
) -> tuple[Dimension, ...]:
    """What timers show: of data parallelism by its timers' shares, of a pipeline by its sends and receives.

    Timers of a part of a dimension, as of the gradients of norms, show nothing of the dimension.
    """
    found = []
    gradients = {name: ratio for name, ratio in shares.items() if name in DATA_PARALLEL}
    if gradients and not _is_alone(description):
        share, source = sum(gradients.values()), f"timers: {', '.join(gradients)}"
        timed = Dimension(group="dp", share_ratio=share, source=source)
        found.append(_exposed(timed, share, source) if timers_cover_all(description) else timed)
    if p2p_ratio is not None and _waits_for_each(description):
        source = "timers: sends and receives, at least"
        timed = Dimension(group="pp", share_ratio=p2p_ratio, source=source)
        found.append(_exposed(timed, p2p_ratio, source))
    return tuple(found)


def timers_cover_all(description: JobDescription | None) -> bool:
    """Whether what timers show of data parallelism is all of it that is exposed.

    Megatron-LM's timers synchronize the device at both ends. Parameters that are gathered beside the forward
    pass are waited for inside its timer, and so are DeepSpeed's buckets in the backward pass.
    """
    if description is None or not _is_megatron(description):
        return False
    return description.arguments.get("overlap_param_gather") != "True"


def seen_dimensions(
    timed: Sequence[Dimension], kernels: Sequence[NcclDimension], description: JobDescription | None
) -> tuple[Dimension, ...]:
    """The same by NCCL's kernels, with what timers, or the schedule, show of their exposed part.

    In Megatron-LM's schedule without interleaving each send and receive is waited for before anything else
    is computed (`validate_args` takes `overlap_p2p_comm` back, and `_communicate` in
    `core/pipeline_parallel/p2p_communication.py` waits for its requests), so all of it is exposed.
    """
    reported = {one.group: one for one in timed if one.exposed_ratio is not None}
    found = []
    for kernel in kernels:
        share = kernel.share_ratio
        seen = Dimension(
            group=kernel.group,
            share_ratio=share,
            transfer_ratio=kernel.transfer_ratio,
            wait_ratio=kernel.wait_ratio,
            source=KERNELS,
        )
        if kernel.group == "pp" and _waits_for_each(description):
            seen = _exposed(seen, share, _WAITS_FOR_EACH)
        elif kernel.group in reported:
            # The longest rank's timer is more than the mean over ranks.
            timer = reported[kernel.group]
            seen = _exposed(seen, min(share, timer.exposed_ratio or 0.0), timer.exposed_source)
        found.append(seen)
    return tuple(found)


def captured_dimensions(
    seen: Sequence[Dimension],
    capture: CaptureEvidence | None,
    parallel: ParallelLayout,
    *,
    complete: bool,
) -> tuple[Dimension, ...]:
    """The same with the exposed part of a capture where nothing else shows it, or why that is unknown.

    `complete` says that no dimension is missing in what was seen; else those of the capture are added.
    """
    if capture is None or not capture.used:
        why = (
            f"capture {capture.capture} is not used: {capture.reason}"
            if capture
            else "no capture was analyzed"
        )
        found = [one if one.exposed_ratio is not None else replace(one, missing=why) for one in seen]
        return _largest_first(found)
    then = _of_capture(capture, parallel)
    found = [_calibrated(one, then.get(one.group), capture) for one in seen]
    if not complete:
        known = {one.group for one in seen}
        found += [one for group, one in then.items() if group not in known]
    return _largest_first(found)


def known_in_all(dimensions: Sequence[Dimension], share_ratio: float) -> tuple[Dimension, ...]:
    """Those whose exposed part is known, if they are nearly all of the share that communication takes."""
    known = tuple(one for one in dimensions if one.exposed_ratio is not None)
    in_none = max(0.0, share_ratio - sum(one.share_ratio for one in dimensions))
    unknown = in_none + sum(one.share_ratio for one in dimensions if one.exposed_ratio is None)
    return known if unknown <= _LITTLE else ()


def costliest(dimensions: Iterable[Dimension]) -> Dimension | None:
    """The one that costs the most of a step; None where one of which that is unknown may cost more.

    A pipeline whose waiting and transfers are not known apart is left out: that is its stall.
    """
    reported = [one for one in dimensions if one.group != "pp" or one.transfer_ratio is not None]
    most = max(reported, key=_lost_at_most, default=None)
    return most if most is not None and most.lost_ratio else None


def _lost_at_most(one: Dimension) -> float:
    at_most = one.share_ratio if one.transfer_ratio is None else one.transfer_ratio
    return at_most if one.lost_ratio is None else one.lost_ratio


def _largest_first(found: Iterable[Dimension]) -> tuple[Dimension, ...]:
    return tuple(sorted(found, key=lambda one: (-one.share_ratio, str(one.group))))


def _exposed(seen: Dimension, ratio: float, source: str | None) -> Dimension:
    return replace(seen, exposed_ratio=ratio, exposed_source=source)


def _is_alone(description: JobDescription | None) -> bool:
    """Whether gradients of a rank are reduced with no other rank."""
    parallel = description.parallel if description else ParallelLayout()
    return parallel.dp == 1 and (parallel.cp or 1) == 1


def _is_megatron(description: JobDescription) -> bool:
    return description.framework.lower().startswith("megatron")


def _waits_for_each(description: JobDescription | None) -> bool:
    """Whether nothing is computed during a send or receive between stages."""
    return description is not None and _is_megatron(description) and description.parallel.vp == 1


def _calibrated(seen: Dimension, then: Dimension | None, capture: CaptureEvidence) -> Dimension:
    if seen.exposed_ratio is not None:
        return seen
    if then is None or then.exposed_ratio is None or then.share_ratio <= 0:
        return replace(seen, missing=f"capture {capture.capture} does not show it for these groups")
    if seen.source != KERNELS:
        # Timers that do not show all of it say nothing of how much there is now.
        return then
    return _exposed(seen, *capture.exposed_now(then.share_ratio, then.exposed_ratio, seen.share_ratio))


def _of_capture(capture: CaptureEvidence, parallel: ParallelLayout) -> dict[str | None, Dimension]:
    """Dimensions by group, as they were meanwhile; of groups of unknown ranks nothing is said."""
    rows: dict[str | None, list[GroupShares]] = {}
    for row in capture.shares.groups:
        rows.setdefault(_dimension_of(row, parallel), []).append(row)
    return {group: _then(group, found, capture) for group, found in rows.items()}


def _then(group: str | None, rows: Sequence[GroupShares], capture: CaptureEvidence) -> Dimension:
    share = capture.of_now(sum(row.communication_ratio for row in rows))
    waits = [row.waiting_ratio for row in rows]
    wait = None
    if None not in waits:
        wait = capture.of_now(sum(row.communication_ratio * (row.waiting_ratio or 0.0) for row in rows))
    return Dimension(
        group=group,
        share_ratio=share,
        transfer_ratio=None if wait is None else share - wait,
        wait_ratio=wait,
        source=capture.source,
        exposed_ratio=capture.of_now(sum(row.exposed_ratio for row in rows)),
        exposed_source=capture.source,
    )


def _dimension_of(row: GroupShares, parallel: ParallelLayout) -> str | None:
    """By ranks and layout, else as the trace calls the group."""
    plain = row.operation.replace("_", "").lower()
    operation = next((one for one in (ALL_TO_ALL, ALL_REDUCE) if plain.startswith(one.lower())), "")
    found = dimension_name(group_name(row.ranks, parallel, operation), parallel, operation)
    only_pipeline = (parallel.pp or 1) > 1 and (parallel.cp or 1) == (parallel.ep or 1) == 1
    if plain == "sendrecv" and only_pipeline and found in {None, WORLD}:
        # Over a group of all ranks, or one that fits no dimension, no other rank sends.
        return "pp"
    if plain == "barrier" and found == dimension_name(WORLD, parallel):
        return WORLD
    return found or row.name or None

"""Conditions on a rank, as written by hand or in a profile: numbers, roles, nodes, GPUs, pods."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, TypeAlias

from perfd.errors import CaptureError
from perfd.model import ParallelLayout

if TYPE_CHECKING:
    from perfd.capture.selection.rank_selection import RankView

Condition: TypeAlias = "Callable[[RankView, ParallelLayout], bool]"

PLACE = re.compile(r"(node|gpu|pod)=([A-Za-z0-9*][A-Za-z0-9._/*-]{0,252})")
_RANGE = re.compile(r"(\d{1,7})(?:-(\d{1,7}))?")
ROLE = re.compile(r"(stage|pp|tp|cp|dp|ep)=(first|last|\d{1,7})")
_MAX_RANK = 1_000_000
"""More than any job has: a range such as 0-999999999 would fill memory."""
_POD_OF_A_JOB = "-[a-z0-9]{5}"
"""Kubernetes' suffix to the host name of an indexed Job's pod in the pod's name."""


def coordinate(rank: int, dimension: str, layout: ParallelLayout) -> int:
    """The index of a rank along `tp`, `cp`, `ep`, `dp` or `pp` (also called `stage`).

    The order is Megatron-LM's default, `tp-cp-ep-dp-pp` (megatron/core/parallel_state.py): tensor
    parallelism varies fastest and pipeline stages slowest; `ep` divides what is beyond `tp`. torchtitan's
    and DeepSpeed's default meshes place tp, dp and pp alike. Raises `CaptureError` if a size that it
    needs is unknown.
    """
    tp, cp = layout.tp or 1, layout.cp or 1
    if dimension in ("stage", "pp"):
        stages, world = _known(layout.pp, "pp"), _known(layout.world_size, "the world size")
        if world % stages:
            raise CaptureError(f"{world} ranks do not divide into {stages} pipeline stages.")
        return rank // (world // stages)
    if dimension == "tp":
        return rank % _known(layout.tp, "tp")
    if dimension == "cp":
        return rank // tp % _known(layout.cp, "cp")
    if dimension == "ep":
        return rank // tp % _known(layout.ep, "ep")
    return rank // (tp * cp) % _known(layout.dp, "dp")


def _known(size: int | None, what: str) -> int:
    if not size:
        raise CaptureError(f"The job's layout lacks {what}, which the choice of ranks needs.")
    return size


def parse_conditions(term: str) -> set[int] | list[Condition]:
    """A list of ranks, or conditions on a rank; raises `CaptureError` for anything else."""
    ranks: set[int] = set()
    conditions: list[Condition] = []
    for part in (piece.strip() for piece in term.split(",")):
        if span := _RANGE.fullmatch(part):
            first, last = int(span[1]), int(span[2] or span[1])
            if last < first or last >= _MAX_RANK:
                raise CaptureError(f"{part!r} is not a range of ranks.")
            ranks.update(range(first, last + 1))
        elif role := ROLE.fullmatch(part):
            conditions.append(_role_condition(role[1], role[2]))
        elif place := PLACE.fullmatch(part):
            conditions.append(_place_condition(place[1], place[2]))
        else:
            raise CaptureError(
                f"{part!r} does not choose ranks; use all, alert, culprits, peer, slowest:N, a list such as "
                "0,3,8-11, roles such as stage=last,tp=0, or places such as node=n7,gpu=3, pod=NAME."
            )
    if ranks and conditions:
        raise CaptureError(f"{term!r} mixes ranks with roles or places; join them with + instead of a comma.")
    return ranks or conditions


def _place_condition(kind: str, wanted: str) -> Condition:
    def holds(rank: RankView, _: ParallelLayout) -> bool:
        if kind == "pod":
            return in_pod(rank, wanted)
        return fnmatchcase(rank.node if kind == "node" else str(rank.gpu), wanted)

    return holds


def in_pod(rank: RankView, wanted: str) -> bool:
    """Whether a rank is in a pod of that UID or name; a sidecar agent has the pod's name."""
    names = [name for name in (rank.pod_uid, rank.pod_name, rank.node) if name]
    if any(fnmatchcase(name, wanted) for name in names):
        return True
    return bool(rank.pod_name and re.fullmatch(re.escape(rank.pod_name) + _POD_OF_A_JOB, wanted))


def _role_condition(dimension: str, wanted: str) -> Condition:
    sizes: Mapping[str, Callable[[ParallelLayout], int | None]] = {
        "stage": lambda layout: layout.pp,
        "pp": lambda layout: layout.pp,
        "tp": lambda layout: layout.tp,
        "cp": lambda layout: layout.cp,
        "dp": lambda layout: layout.dp,
        "ep": lambda layout: layout.ep,
    }

    def holds(rank: RankView, layout: ParallelLayout) -> bool:
        index = {"first": 0, "last": (sizes[dimension](layout) or 0) - 1}.get(wanted)
        return coordinate(rank.rank, dimension, layout) == (int(wanted) if index is None else index)

    return holds

"""The command that takes a node out of scheduling, as a list of words, and the reason that it states."""

from __future__ import annotations

import re
from collections import Counter

from perfd.nodes.node_ledger import Scheduler
from perfd.nodes.suspicion import NodeStanding

_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,251}[A-Za-z0-9])?")
_GPU = re.compile(r"[A-Za-z0-9 ._:/-]{1,64}")
_LEAST_GPU_H = 0.05
"""Less would be printed as 0.0."""
_EVERY_NODE = frozenset({"all", "default"})
"""Names that mean other nodes, or all, to SLURM."""
TAINT = "perfd.io/suspect"


def drainable(node: str) -> bool:
    """Whether a name can be that of one node: no option, no list, and none that means all of them.

    Agents choose their names, so a command is made for no other.
    """
    return _NAME.fullmatch(node) is not None and node.lower() not in _EVERY_NODE


def drain_command(node: str, scheduler: Scheduler, reason: str) -> tuple[str, ...] | None:
    """The words of the command; None for a name of which none is made."""
    if not drainable(node):
        return None
    if scheduler is Scheduler.KUBERNETES:
        return ("kubectl", "taint", "nodes", node, f"{TAINT}=true:NoSchedule", "--overwrite")
    return ("scontrol", "update", f"NodeName={node}", "State=DRAIN", f"Reason={reason}")


def reason_of(standing: NodeStanding) -> str:
    """Why, in a line: `perfd: GPU 3: straggler x4, hang x1 in 4 jobs, 12.5 GPU-hours lost`."""
    gpu = standing.worst_gpu
    about = [one for one in standing.incidents if not gpu or one.gpu == gpu]
    kinds = Counter(one.kind.text for one in about)
    what = ", ".join(f"{kind} x{count}" for kind, count in kinds.most_common(3))
    jobs = len({one.job for one in about})
    where = f"GPU {gpu}: " if _GPU.fullmatch(gpu) else ""
    plural = "" if jobs == 1 else "s"
    lost = f", {standing.lost_gpu_h:.1f} GPU-hours lost" if standing.lost_gpu_h >= _LEAST_GPU_H else ""
    return f"perfd: {where}{what} in {jobs} job{plural}{lost}"

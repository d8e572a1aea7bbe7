"""What the `ranks` collector counts on a node."""

from __future__ import annotations

from collections.abc import Sequence

from perfd.collector import Column
from perfd.model import Scope

COLUMNS: Sequence[Column] = (
    Column(
        scope=Scope.NODE,
        name="gpu_processes",
        help="Processes with a compute context on a GPU of the node.",
        source="nvmlDeviceGetComputeRunningProcesses",
        absent="Without NVML.",
    ),
    Column(
        scope=Scope.NODE,
        name="rank_processes",
        help="Ranks found on the node.",
        source="/proc/PID/environ",
        absent="Never while the collector works.",
    ),
    Column(
        scope=Scope.NODE,
        name="foreign_rank_processes",
        help="Processes that are left out because they claim to be ranks of another user's job.",
        source="/proc/PID",
        absent="Never while the collector works.",
    ),
    Column(
        scope=Scope.NODE,
        name="unreadable_processes",
        help="GPU processes, or processes of `perfd run`, whose environment is unreadable for this user.",
        source="/proc/PID/environ",
        absent="When all processes are searched for ranks, because NVML lists none.",
    ),
)

"""Whether NCCL's operations can be recorded on a node."""

from __future__ import annotations

from perfd.doctor.check_result import CheckResult, Level
from perfd.doctor.node_facts import NodeFacts
from perfd.formatting import data_size

_SEGMENT_BYTES = 9 << 20
"""Largest segment of a process: eight ring buffers of 1 MiB and a table (collectors/nccl_plugin/layout.h)."""


def check_nccl_plugin(facts: NodeFacts) -> CheckResult:
    """Whether the plugin for timing collectives is installed."""
    title = "NCCL profiler plugin"
    if facts.nccl_plugin is None:
        return CheckResult(
            check="nccl_plugin",
            level=Level.WARN,
            title=title,
            what="libnccl-profiler-perfd.so not found: communication is only measured by the job's timers",
            fix="Reinstall perfd on a machine with a C compiler, which builds the plugin.",
        )
    return CheckResult(check="nccl_plugin", level=Level.OK, title=title, what=str(facts.nccl_plugin))


def check_shared_memory(facts: NodeFacts) -> CheckResult:
    """Whether the plugin has enough shared memory; without it, the job runs but nothing is recorded."""
    memory = facts.shared_memory
    title = "shared memory for the NCCL plugin"
    fix = (
        "Give the job a larger /dev/shm (containers: --shm-size=1g), or set PERFD_NCCL_DIR to another"
        " directory in memory, and collectors.nccl.options.directory of the agent to the same one."
    )
    if memory.problem:
        what = f"{memory.path} is not writable: {memory.problem}; NCCL operations are not recorded"
        return CheckResult(check="shared_memory", level=Level.WARN, title=title, what=what, fix=fix)
    needed_bytes = max(1, len(facts.nvml.gpus)) * _SEGMENT_BYTES
    free = f"{memory.path}: {data_size(memory.free_bytes)} free"
    if memory.free_bytes < needed_bytes:
        what = f"{free}, {data_size(needed_bytes)} needed ({data_size(_SEGMENT_BYTES)} per GPU)"
        return CheckResult(check="shared_memory", level=Level.WARN, title=title, what=what, fix=fix)
    return CheckResult(check="shared_memory", level=Level.OK, title=title, what=free)

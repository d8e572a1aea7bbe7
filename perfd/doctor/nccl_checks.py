"""Whether NCCL's operations can be recorded on a node."""

from __future__ import annotations

from perfd.doctor.check_result import CheckResult, Level
from perfd.doctor.node_facts import NodeFacts
from perfd.formatting import data_size

_MOST_OF_A_GPU_BYTES = 9 << 20
"""One process, with eight rings of 1 MiB and a table of communicators: collectors/nccl_plugin/layout.h."""


def check_nccl_plugin(facts: NodeFacts) -> CheckResult:
    """Whether NCCL can tell the time of each collective."""
    title = "NCCL profiler plugin"
    if facts.nccl_plugin is None:
        return CheckResult(
            check="nccl_plugin",
            level=Level.WARN,
            title=title,
            what="libnccl-profiler-perfd.so is not in this installation; communication comes from timers",
            mend="Install perfd where there is a C compiler; the plugin is built then.",
        )
    return CheckResult(check="nccl_plugin", level=Level.OK, title=title, what=str(facts.nccl_plugin))


def check_shared_memory(facts: NodeFacts) -> CheckResult:
    """Whether the plugin finds room for what it records; without it, it records nothing, and the job runs."""
    memory = facts.shared_memory
    title = "shared memory of the NCCL plugin"
    mend = (
        "Give the job a larger /dev/shm (containers: --shm-size=1g), or another directory in memory by"
        " PERFD_NCCL_DIR, and the agent the same one by collectors.nccl.options.directory."
    )
    if memory.problem:
        what = f"{memory.path} cannot be written: {memory.problem}; NCCL's operations are not recorded"
        return CheckResult(check="shared_memory", level=Level.WARN, title=title, what=what, mend=mend)
    wanted_bytes = max(1, len(facts.nvml.gpus)) * _MOST_OF_A_GPU_BYTES
    free = f"{memory.path}: {data_size(memory.free_bytes)} free"
    if memory.free_bytes < wanted_bytes:
        what = f"{free}, {data_size(wanted_bytes)} wanted ({data_size(_MOST_OF_A_GPU_BYTES)} per GPU)"
        return CheckResult(check="shared_memory", level=Level.WARN, title=title, what=what, mend=mend)
    return CheckResult(check="shared_memory", level=Level.OK, title=title, what=free)

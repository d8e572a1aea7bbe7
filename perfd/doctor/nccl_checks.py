"""Whether NCCL's operations can be recorded on a node."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from perfd.doctor.check_result import CheckResult, check, ok, warn
from perfd.doctor.node_facts import NodeFacts
from perfd.formatting import data_size

_SEGMENT_BYTES = 9 << 20
"""Largest segment of a process: eight ring buffers of 1 MiB and a table (collectors/nccl_plugin/layout.h)."""


@check("nccl_plugin", "NCCL profiler plugin")
def check_nccl_plugin(facts: NodeFacts) -> CheckResult:
    """Whether the plugin for timing collectives is installed."""
    if facts.nccl_plugin is None:
        return warn(
            "libnccl-profiler-perfd.so not found: communication is only measured by the job's timers",
            "Reinstall perfd on a machine with a C compiler, which builds the plugin.",
        )
    return ok(str(facts.nccl_plugin))


@check("shared_memory", "shared memory for the NCCL plugin")
def check_shared_memory(facts: NodeFacts) -> CheckResult:
    """Whether the plugin has enough shared memory; without it, the job runs but nothing is recorded."""
    memory = facts.shared_memory
    fix = (
        "Give the job a larger /dev/shm (containers: --shm-size=1g), or set PERFD_NCCL_DIR to another"
        " directory in memory, and collectors.nccl.options.directory of the agent to the same one."
    )
    if memory.problem:
        return warn(f"{memory.path} is not writable: {memory.problem}; NCCL operations are not recorded", fix)
    needed_bytes = max(1, len(facts.nvml.gpus)) * _SEGMENT_BYTES
    free = f"{memory.path}: {data_size(memory.free_bytes)} free"
    if memory.free_bytes < needed_bytes:
        return warn(f"{free}, {data_size(needed_bytes)} needed ({data_size(_SEGMENT_BYTES)} per GPU)", fix)
    return ok(free)


@check("nccl_settings", "NCCL's variables")
def check_nccl_settings(facts: NodeFacts) -> CheckResult:
    """Whether NCCL's variables disable fast paths, or name devices that the node lacks."""
    settings = facts.nccl_settings
    doubts = [
        f"{name}={setting.value} ({setting.source}) {problem}"
        for name, setting in sorted(settings.items())
        if (problem := _problem(name, setting.value, facts))
    ]
    if doubts:
        return warn(
            "; ".join(doubts),
            "Unset what is not intended before starting a job: NCCL's defaults are usually the fastest.",
        )
    what = ", ".join(f"{name}={setting.value}" for name, setting in sorted(settings.items()))
    return ok(what or "none set")


_OFF = frozenset({"", "0"})
_NO_P2P = "disables direct transfers between GPUs, NVLink included"
_DOUBTFUL: Mapping[str, tuple[Callable[[str], bool], str]] = {
    "NCCL_ALGO": (bool, "forces one algorithm for all sizes"),
    "NCCL_PROTO": (bool, "forces one protocol for all sizes"),
    "NCCL_MAX_NCHANNELS": (bool, "limits the channels, and so the bandwidth"),
    "NCCL_MAX_CTAS": (bool, "limits the thread blocks, and so the bandwidth"),
    "NCCL_P2P_DISABLE": (lambda value: value not in _OFF, _NO_P2P),
    "NCCL_P2P_LEVEL": (lambda value: value.upper() in {"0", "LOC"}, _NO_P2P),
    "NCCL_SHM_DISABLE": (
        lambda value: value not in _OFF,
        "disables shared memory between processes of a node",
    ),
    "NCCL_NVLS_ENABLE": (lambda value: value == "0", "disables NVLink SHARP"),
    "NCCL_DEBUG": (lambda value: value.upper() == "TRACE", "logs every call, which slows the job"),
}
"""Values that cost speed on any node, and why."""


def _problem(name: str, value: str, facts: NodeFacts) -> str | None:
    """What is doubtful about one variable; None if nothing is."""
    if name in _DOUBTFUL:
        applies, problem = _DOUBTFUL[name]
        return problem if applies(value) else None
    return _network_problem(name, value, facts)


def _network_problem(name: str, value: str, facts: NodeFacts) -> str | None:
    if name == "NCCL_IB_DISABLE" and value not in _OFF and facts.infiniband:
        return f"disables InfiniBand, although {', '.join(facts.infiniband)} could be used"
    if name == "NCCL_NET" and value.lower() == "socket" and facts.infiniband:
        return f"uses TCP, although {', '.join(facts.infiniband)} could be used"
    names = value.lstrip("^=").split(",")
    if name == "NCCL_IB_HCA" and facts.infiniband and not value.startswith("^"):
        if not _any_matches(facts.infiniband, [one.split(":")[0] for one in names], exact=value[:1] == "="):
            return f"names no InfiniBand device with an active port ({', '.join(facts.infiniband)})"
    elif name == "NCCL_SOCKET_IFNAME" and facts.interfaces and not value.startswith("^"):
        if not _any_matches(facts.interfaces, names, exact=value[:1] == "="):
            return f"names no network interface of this node ({', '.join(facts.interfaces)})"
        if set(names) == {"lo"}:
            return "uses the loopback interface, which other nodes cannot reach"
    return None


def _any_matches(present: Sequence[str], wanted: Sequence[str], *, exact: bool) -> bool:
    """As NCCL: names are prefixes unless the value begins with `=`."""
    return any(one == want or (not exact and one.startswith(want)) for one in present for want in wanted)

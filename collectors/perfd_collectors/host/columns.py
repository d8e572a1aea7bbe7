"""The catalog of the `host` collector."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from perfd.collector import Column, ColumnKind
from perfd.model import Scope
from perfd_collectors.host.infiniband import HEALTH, TRAFFIC

_NEVER = "The kernel does not have it, or /proc is not mounted."
_FIRST = "In the first sample, which has no time before it."
_NO_PRESSURE = "The kernel is older than 4.20, or was started without `psi=1`."
_NO_ADAPTER = "There is no InfiniBand or RoCE adapter, or it does not count this."


def _gauge(scope: Scope, name: str, description: str, source: str, absent: str = _NEVER) -> Column:
    return Column(scope=scope, name=name, help=description, source=source, absent=absent)


def _counter(scope: Scope, name: str, description: str, source: str, absent: str = _NEVER) -> Column:
    return Column(
        scope=scope, name=name, help=description, source=source, absent=absent, kind=ColumnKind.COUNTER
    )


def _cpu(name: str, description: str) -> Column:
    return _gauge(Scope.NODE, f"cpu_{name}_ratio", description, "/proc/stat", _FIRST)


def _pressure(resource: str, kind: str, who: str) -> Column:
    return _counter(
        Scope.NODE,
        f"pressure_{resource}_{kind}_s",
        f"Time in which {who} waited for {resource}.",
        f"/proc/pressure/{resource}",
        _NO_PRESSURE,
    )


_NODE: Sequence[Column] = (
    _cpu("user", "Share of the time of all CPUs spent in programs."),
    _cpu("system", "Share of the time of all CPUs spent in the kernel and its interrupts."),
    _cpu("idle", "Share of the time of all CPUs in which there was nothing to do."),
    _cpu("iowait", "Share of the time of all CPUs in which there was nothing to do but wait for a disk."),
    _cpu("steal", "Share of the time of all CPUs that the hypervisor gave to others."),
    _gauge(Scope.NODE, "online_cpus", "CPUs that are on.", "/proc/stat"),
    _gauge(Scope.NODE, "load_1min_processes", "Load average of a minute.", "/proc/loadavg"),
    _gauge(Scope.NODE, "load_5min_processes", "Load average of five minutes.", "/proc/loadavg"),
    _gauge(Scope.NODE, "load_15min_processes", "Load average of fifteen minutes.", "/proc/loadavg"),
    _gauge(Scope.NODE, "runnable_processes", "Processes that run or could run.", "/proc/stat"),
    _gauge(Scope.NODE, "blocked_processes", "Processes that wait for a disk.", "/proc/stat"),
    _counter(Scope.NODE, "context_switches", "Context switches since boot.", "/proc/stat"),
    _gauge(Scope.NODE, "memory_total_bytes", "Memory of the node.", "/proc/meminfo MemTotal"),
    _gauge(
        Scope.NODE,
        "memory_available_bytes",
        "Memory that programs can get without swapping.",
        "/proc/meminfo MemAvailable",
    ),
    _gauge(
        Scope.NODE,
        "memory_page_cache_bytes",
        "Memory that caches files, shared memory included.",
        "/proc/meminfo Cached",
    ),
    _gauge(
        Scope.NODE,
        "memory_shared_bytes",
        "Shared memory and tmpfs: data loaders keep batches there.",
        "/proc/meminfo Shmem",
    ),
    _gauge(Scope.NODE, "memory_dirty_bytes", "File data that is not on disk yet.", "/proc/meminfo Dirty"),
    _gauge(Scope.NODE, "swap_total_bytes", "Size of the swap.", "/proc/meminfo SwapTotal"),
    _gauge(Scope.NODE, "swap_used_bytes", "Swap in use.", "/proc/meminfo SwapTotal, SwapFree"),
    _counter(
        Scope.NODE, "major_page_faults", "Page faults that had to read a disk.", "/proc/vmstat pgmajfault"
    ),
    _counter(
        Scope.NODE, "oom_kills", "Processes that the kernel killed for memory.", "/proc/vmstat oom_kill"
    ),
    _pressure("cpu", "some", "at least one task"),
    _pressure("memory", "some", "at least one task"),
    _pressure("memory", "full", "every task that was not idle"),
    _pressure("io", "some", "at least one task"),
    _pressure("io", "full", "every task that was not idle"),
    _counter(
        Scope.NODE, "agent_cpu_s", "CPU time that the agent itself has used.", "the agent's own process"
    ),
    _gauge(Scope.NODE, "agent_rss_bytes", "Memory of the agent itself.", "/proc/self/statm"),
)

_ROOT = "/proc/net/dev or /sys/class/infiniband"
_NIC_NAMES: Mapping[str, str] = {
    "rx_bytes": "Bytes received.",
    "tx_bytes": "Bytes sent.",
    "rx_packets": "Packets received.",
    "tx_packets": "Packets sent.",
    "rx_errors": "Packets received with an error.",
    "tx_errors": "Packets that could not be sent for an error.",
    "rx_dropped_packets": "Packets received and dropped.",
    "tx_dropped_packets": "Packets dropped before they were sent.",
}
_PORT_NAMES: Mapping[str, str] = {
    "tx_wait_ticks": "Ticks in which the port had data to send and no credit: congestion on InfiniBand.",
    "symbol_errors": "Symbol errors of the link.",
    "link_recoveries": "Times that the link recovered by itself from errors.",
    "link_downs": "Times that the link went down.",
    "remote_physical_errors": "Packets that arrived with a mark of an error further away.",
    "link_integrity_errors": "Times that the link had more errors than its threshold.",
    "buffer_overrun_errors": "Times that the receive buffer was overrun.",
    "congestion_notifications_sent_packets": "Congestion notifications sent, for marked packets received.",
    "congestion_notifications_handled_packets": "Congestion notifications that made this sender slow down.",
    "congestion_marked_packets": "RoCE packets received with the congestion mark.",
    "out_of_sequence_packets": "Packets received out of their order.",
    "packet_sequence_errors": "Answers that said a packet was lost.",
    "out_of_buffer_packets": "Packets dropped because no receive buffer was posted.",
    "acknowledgement_timeouts": "Times that an acknowledgement did not come in time.",
    "receiver_not_ready_retries": "Answers that the receiver was not ready, beyond the retries.",
    "adaptive_retransmissions": "Adaptive retransmissions of RoCE.",
    "slow_restarts": "Times that RoCE started slowly again.",
}

_PORT_FILES = {**TRAFFIC, **HEALTH}

_NIC: Sequence[Column] = (
    *(_counter(Scope.NIC, name, text, _ROOT) for name, text in _NIC_NAMES.items()),
    *(
        _counter(
            Scope.NIC,
            name,
            text,
            f"/sys/class/infiniband/*/ports/*/{_PORT_FILES[name][0]}",
            _NO_ADAPTER,
        )
        for name, text in _PORT_NAMES.items()
    ),
    _gauge(
        Scope.NIC, "link_up", "1 when the link is up.", "/sys/class/net/*/operstate or the port's state",
        "Between the slow reads (`slow_interval_s`), and for an interface that has no link state.",
    ),
    _gauge(
        Scope.NIC, "speed_bytes_per_s", "What the link carries at most, each way.",
        "/sys/class/net/*/speed or the port's rate",
        "Between the slow reads (`slow_interval_s`), and for an interface that has no speed.",
    ),
)  # fmt: skip

_DISK_NAMES: Mapping[str, str] = {
    "read_bytes": "Bytes read.",
    "write_bytes": "Bytes written.",
    "read_operations": "Reads that were done.",
    "write_operations": "Writes that were done.",
    "read_s": "Time of all reads, one after the other.",
    "write_s": "Time of all writes, one after the other.",
    "busy_s": "Time in which the disk had something to do.",
    "queue_s": "Time of all requests, those in the queue included.",
}
_DISK: Sequence[Column] = tuple(
    _counter(Scope.DISK, name, text, "/proc/diskstats", "There is no such disk.")
    for name, text in _DISK_NAMES.items()
)

COLUMNS: Sequence[Column] = (*_NODE, *_NIC, *_DISK)

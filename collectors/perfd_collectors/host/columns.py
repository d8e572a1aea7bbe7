"""The columns of the `host` collector."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from perfd.collector import Column, ColumnKind
from perfd.model import Scope
from perfd_collectors.host.infiniband import HEALTH, TRAFFIC

_NEVER = "When the kernel does not report it, or /proc is not mounted."
_FIRST = "In the first sample."
_NO_PRESSURE = "On kernels older than 4.20, or without `psi=1`."
_NO_ADAPTER = "Without an InfiniBand or RoCE adapter that has this counter."


def _gauge(scope: Scope, name: str, description: str, source: str, absent: str = _NEVER) -> Column:
    return Column(scope=scope, name=name, help=description, source=source, absent=absent)


def _counter(scope: Scope, name: str, description: str, source: str, absent: str = _NEVER) -> Column:
    return Column(
        scope=scope, name=name, help=description, source=source, absent=absent, kind=ColumnKind.COUNTER
    )


def _cpu(name: str, description: str) -> Column:
    return _gauge(Scope.NODE, f"cpu_{name}_ratio", description, "/proc/stat", _FIRST)


def _pressure(resource: str, kind: str, tasks: str) -> Column:
    return _counter(
        Scope.NODE,
        f"pressure_{resource}_{kind}_s",
        f"Time in which {tasks} waited for {resource}.",
        f"/proc/pressure/{resource}",
        _NO_PRESSURE,
    )


_NODE: Sequence[Column] = (
    _cpu("user", "Share of CPU time in user mode."),
    _cpu("system", "Share of CPU time in the kernel, including interrupts."),
    _cpu("idle", "Share of idle CPU time."),
    _cpu("iowait", "Share of CPU time spent idle while waiting for I/O."),
    _cpu("steal", "Share of CPU time taken by the hypervisor."),
    _gauge(Scope.NODE, "online_cpus", "Online CPUs.", "/proc/stat"),
    _gauge(Scope.NODE, "load_1min_processes", "Load average over 1 minute.", "/proc/loadavg"),
    _gauge(Scope.NODE, "load_5min_processes", "Load average over 5 minutes.", "/proc/loadavg"),
    _gauge(Scope.NODE, "load_15min_processes", "Load average over 15 minutes.", "/proc/loadavg"),
    _gauge(Scope.NODE, "runnable_processes", "Running or runnable processes.", "/proc/stat"),
    _gauge(Scope.NODE, "blocked_processes", "Processes waiting for I/O.", "/proc/stat"),
    _counter(Scope.NODE, "context_switches", "Context switches since boot.", "/proc/stat"),
    _gauge(Scope.NODE, "memory_total_bytes", "Memory size of the node.", "/proc/meminfo MemTotal"),
    _gauge(
        Scope.NODE,
        "memory_available_bytes",
        "Memory available without swapping.",
        "/proc/meminfo MemAvailable",
    ),
    _gauge(
        Scope.NODE,
        "memory_page_cache_bytes",
        "Page cache, including shared memory.",
        "/proc/meminfo Cached",
    ),
    _gauge(
        Scope.NODE,
        "memory_shared_bytes",
        "Shared memory and tmpfs, where data loaders keep batches.",
        "/proc/meminfo Shmem",
    ),
    _gauge(Scope.NODE, "memory_dirty_bytes", "File data not yet written to disk.", "/proc/meminfo Dirty"),
    _gauge(Scope.NODE, "swap_total_bytes", "Swap size.", "/proc/meminfo SwapTotal"),
    _gauge(Scope.NODE, "swap_used_bytes", "Swap in use.", "/proc/meminfo SwapTotal, SwapFree"),
    _counter(Scope.NODE, "major_page_faults", "Page faults that read from disk.", "/proc/vmstat pgmajfault"),
    _counter(
        Scope.NODE, "oom_kills", "Processes killed by the kernel for lack of memory.", "/proc/vmstat oom_kill"
    ),
    _pressure("cpu", "some", "at least one task"),
    _pressure("memory", "some", "at least one task"),
    _pressure("memory", "full", "all non-idle tasks"),
    _pressure("io", "some", "at least one task"),
    _pressure("io", "full", "all non-idle tasks"),
    _counter(Scope.NODE, "agent_cpu_s", "CPU time used by the agent.", "the agent's own process"),
    _gauge(Scope.NODE, "agent_rss_bytes", "Resident memory of the agent.", "/proc/self/statm"),
)

_ROOT = "/proc/net/dev or /sys/class/infiniband"
_NIC_NAMES: Mapping[str, str] = {
    "rx_bytes": "Bytes received.",
    "tx_bytes": "Bytes sent.",
    "rx_packets": "Packets received.",
    "tx_packets": "Packets sent.",
    "rx_errors": "Packets received with an error.",
    "tx_errors": "Packets not sent because of an error.",
    "rx_dropped_packets": "Packets received and dropped.",
    "tx_dropped_packets": "Packets dropped before sending.",
}
_PORT_NAMES: Mapping[str, str] = {
    "tx_wait_ticks": "Ticks in which the port had data to send but no credits: congestion on InfiniBand.",
    "symbol_errors": "Symbol errors of the link.",
    "link_recoveries": "Link error recoveries.",
    "link_downs": "Times the link went down.",
    "remote_physical_errors": "Packets received with an error marked by a remote switch.",
    "link_integrity_errors": "Times that local link errors exceeded the threshold.",
    "buffer_overrun_errors": "Receive buffer overruns.",
    "congestion_notifications_sent_packets": "Congestion notifications sent for marked packets.",
    "congestion_notifications_handled_packets": "Congestion notifications that throttled this sender.",
    "congestion_marked_packets": "RoCE packets received with the congestion mark.",
    "out_of_sequence_packets": "Packets received out of order.",
    "packet_sequence_errors": "Negative acknowledgments for lost packets.",
    "out_of_buffer_packets": "Packets dropped because no receive buffer was posted.",
    "acknowledgement_timeouts": "Acknowledgment timeouts.",
    "receiver_not_ready_retries": "Receiver-not-ready errors after all retries.",
    "adaptive_retransmissions": "RoCE adaptive retransmissions.",
    "slow_restarts": "RoCE slow restarts.",
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
        "Between slow reads (`slow_interval_s`), and without a link state.",
    ),
    _gauge(
        Scope.NIC, "speed_bytes_per_s", "Link speed, per direction.",
        "/sys/class/net/*/speed or the port's rate",
        "Between slow reads (`slow_interval_s`), and without a speed.",
    ),
)  # fmt: skip

_DISK_NAMES: Mapping[str, str] = {
    "read_bytes": "Bytes read.",
    "write_bytes": "Bytes written.",
    "read_operations": "Completed reads.",
    "write_operations": "Completed writes.",
    "read_s": "Total time of all reads.",
    "write_s": "Total time of all writes.",
    "busy_s": "Time in which the disk was busy.",
    "queue_s": "Total time of all requests, including queueing.",
}
_DISK: Sequence[Column] = tuple(
    _counter(Scope.DISK, name, text, "/proc/diskstats", "Without such a disk.")
    for name, text in _DISK_NAMES.items()
)

COLUMNS: Sequence[Column] = (*_NODE, *_NIC, *_DISK)

"""InfiniBand and RoCE ports from sysfs (Documentation/ABI/stable/sysfs-class-infiniband)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from perfd_collectors.host.small_files import names_in, read_bytes, read_count

DATA_WORD_BYTES = 4
"""port_xmit_data and port_rcv_data count words of four bytes (same document)."""

TRAFFIC: Mapping[str, tuple[str, float]] = {
    "tx_bytes": ("counters/port_xmit_data", DATA_WORD_BYTES),
    "rx_bytes": ("counters/port_rcv_data", DATA_WORD_BYTES),
    "tx_packets": ("counters/port_xmit_packets", 1),
    "rx_packets": ("counters/port_rcv_packets", 1),
    "tx_wait_ticks": ("counters/port_xmit_wait", 1),
}
"""Column, its file below the port, and the column's units per count; read each time."""

HEALTH: Mapping[str, tuple[str, float]] = {
    "rx_errors": ("counters/port_rcv_errors", 1),
    "tx_dropped_packets": ("counters/port_xmit_discards", 1),
    "symbol_errors": ("counters/symbol_error", 1),
    "link_recoveries": ("counters/link_error_recovery", 1),
    "link_downs": ("counters/link_downed", 1),
    "remote_physical_errors": ("counters/port_rcv_remote_physical_errors", 1),
    "link_integrity_errors": ("counters/local_link_integrity_errors", 1),
    "buffer_overrun_errors": ("counters/excessive_buffer_overrun_errors", 1),
    "congestion_notifications_sent_packets": ("hw_counters/np_cnp_sent", 1),
    "congestion_notifications_handled_packets": ("hw_counters/rp_cnp_handled", 1),
    "congestion_marked_packets": ("hw_counters/np_ecn_marked_roce_packets", 1),
    "out_of_sequence_packets": ("hw_counters/out_of_sequence", 1),
    "packet_sequence_errors": ("hw_counters/packet_seq_err", 1),
    "out_of_buffer_packets": ("hw_counters/out_of_buffer", 1),
    "acknowledgement_timeouts": ("hw_counters/local_ack_timeout_err", 1),
    "receiver_not_ready_retries": ("hw_counters/rnr_nak_retry_err", 1),
    "adaptive_retransmissions": ("hw_counters/roce_adp_retrans", 1),
    "slow_restarts": ("hw_counters/roce_slow_restart", 1),
}
"""As `TRAFFIC`, but read every `slow_interval_s`: a read may query the adapter's firmware."""

_RATE = re.compile(rb"\s*(\d+(?:\.\d+)?)\s*Gb/sec")


def ports(sys: Path) -> Mapping[str, Path]:
    """The ports of all adapters by name (`mlx5_0/1`), with their folder."""
    adapters = sys / "class" / "infiniband"
    return {
        f"{adapter}/{port}": adapters / adapter / "ports" / port
        for adapter in names_in(adapters)
        for port in names_in(adapters / adapter / "ports")
        if port.isdigit()
    }


def read_counters(port: Path, files: Mapping[str, tuple[str, float]]) -> Mapping[str, float]:
    """The adapter's counters; missing and non-numeric ones are absent."""
    return {
        column: count * units
        for column, (file, units) in files.items()
        if (count := read_count(port / file)) is not None
    }


def read_link(port: Path) -> Mapping[str, float]:
    """Whether the link is up, and its speed."""
    link = {}
    state = read_bytes(port / "state")
    if state:
        link["link_up"] = float(b"ACTIVE" in state)
    speed = parse_rate(read_bytes(port / "rate") or b"")
    if speed is not None:
        link["speed_bytes_per_s"] = speed
    return link


def parse_rate(text: bytes) -> float | None:
    """`400 Gb/sec (4X NDR)` in bytes per second, or None."""
    match = _RATE.match(text)
    return float(match[1]) * 1e9 / 8 if match else None

"""What NCCL says of itself in a log, as `perfd parse` shows it."""

from __future__ import annotations

from collections import Counter

from perfd_collectors.nccl.debug_log import DebugLog
from rich.table import Table


def nccl_table(log: DebugLog) -> Table:
    """Versions, networks, connections between ranks, and communicators by size."""
    table = Table(title="NCCL", title_justify="left", show_header=False, box=None, pad_edge=False)
    table.add_row("version", _listed(sorted(log.versions)))
    table.add_row("network", _listed(sorted(log.networks)))
    pairs = (f"{count} by {transport}" for transport, count in sorted(log.transports.items()))
    table.add_row("connections", _listed(list(pairs)))
    sizes = Counter({identity: one.ranks for (identity, _), one in log.communicators.items()}.values())
    counted = (f"{count} of {size} ranks" for size, count in sorted(sizes.items(), reverse=True))
    table.add_row("communicators", _listed(list(counted)))
    return table


def _listed(words: list[str]) -> str:
    return ", ".join(words) or "unknown"

"""Numbers and their sources as people read them; without anything else, for what must start at once."""

from __future__ import annotations

from collections.abc import Sequence

_RANKS_SHOWN = 8
_SMALL = 0.1
"""Below it one place after the point says too little."""


def percent(ratio: float) -> str:
    """A ratio as people read it."""
    return f"{100 * ratio:.1f} %"


def milliseconds(seconds: float) -> str:
    """A duration of the length of a step's parts."""
    return f"{1000 * seconds:.1f} ms"


def teraflops(flops_per_s: float) -> str:
    """FLOP/s in units of 10^12, of what runs on CPUs too."""
    value = flops_per_s / 1e12
    return f"{value:.1f}" if value >= _SMALL or not value else f"{value:.2g}"


def rank_names(ranks: Sequence[int]) -> str:
    """The first of them by number, and how many more there are."""
    shown = ", ".join(map(str, ranks[:_RANKS_SHOWN]))
    more = f" and {len(ranks) - _RANKS_SHOWN} more" if len(ranks) > _RANKS_SHOWN else ""
    return f"rank{'s' if len(ranks) > 1 else ''} {shown}{more}"


def kind_of_source(source: str | None) -> str:
    """Which timers there are, and how old a capture is, changes from step to step: that is left out."""
    kind = (source or "").partition(":")[0]
    return "capture" if kind.startswith("capture ") else kind

"""Numbers as people read them; without anything else, for what must start at once."""

from __future__ import annotations


def percent(ratio: float) -> str:
    """A ratio as people read it."""
    return f"{100 * ratio:.1f} %"


def milliseconds(seconds: float) -> str:
    """A duration of the length of a step's parts."""
    return f"{1000 * seconds:.1f} ms"

"""Numbers and names as people read them."""

from __future__ import annotations

import re

UNKNOWN = "-"
_NOISE = re.compile(
    r"(?:(?<![\w:])void |at::native::|at::cuda::|c10::|std::|<unnamed>::|\(anonymous namespace\)::)"
)
_CASTS = re.compile(r"\((?:unsigned )?(?:int|long|bool)\)(?=\d)")


def percent(ratio: float | None) -> str:
    """A ratio, or the sign for unknown."""
    return UNKNOWN if ratio is None else f"{100 * ratio:.1f} %"


def duration(seconds: float | None) -> str:
    """A duration in the unit that leaves three digits, or the sign for unknown."""
    if seconds is None:
        return UNKNOWN
    if seconds == 0:
        return "0"
    for limit, unit, scale in ((1e-7, "ns", 1e9), (1e-3, "us", 1e6), (10.0, "ms", 1e3)):
        if abs(seconds) < limit:
            return f"{seconds * scale:.1f} {unit}"
    return f"{seconds:.2f} s"


def size(count_bytes: float | None) -> str:
    """A size in decimal units, or the sign for unknown."""
    if count_bytes is None:
        return UNKNOWN
    for limit, unit in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if count_bytes >= limit:
            return f"{count_bytes / limit:.1f} {unit}"
    return f"{count_bytes:.0f} B"


def flops(count: float) -> str:
    """A count of operations in the unit that leaves some digits before the point."""
    for limit, unit in ((1e12, "TFLOP"), (1e9, "GFLOP"), (1e6, "MFLOP"), (1e3, "kFLOP")):
        if count >= limit:
            return f"{count / limit:,.2f} {unit}"
    return f"{count:.0f} FLOP"


def kernel_name(name: str, width: int) -> str:
    """A kernel's name without what every name has, cut to a width."""
    plain = _NOISE.sub("", _CASTS.sub("", name)).strip()
    if plain.endswith(")") and "(" in plain and not plain.startswith("Mem"):
        plain = plain[: _matching_bracket(plain)] or plain
    return plain if len(plain) <= width else f"{plain[: width - 3]}..."


def title(identifier: str) -> str:
    """`launch_bound` as `Launch bound`."""
    plain = identifier.replace("_", " ")
    return plain[:1].upper() + plain[1:]


def _matching_bracket(text: str) -> int:
    """Where the bracket that the last character closes was opened."""
    depth = 0
    for at in range(len(text) - 1, -1, -1):
        depth += (text[at] == ")") - (text[at] == "(")
        if depth == 0:
            return at
    return len(text)

"""Names as a report shows them."""

from __future__ import annotations

import re

_NOISE = re.compile(
    r"(?:(?<![\w:])void |at::native::|at::cuda::|c10::|std::|<unnamed>::|\(anonymous namespace\)::)"
)
_CASTS = re.compile(r"\((?:unsigned )?(?:int|long|bool)\)(?=\d)")


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

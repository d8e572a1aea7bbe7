"""Numbers in the query of a request."""

from __future__ import annotations

from collections.abc import Mapping

from perfd.errors import PerfdError

_MOST_DIGITS = 9
"""More than any number that a request may ask for, and far below where Python's conversion is slow."""


def whole_number(query: Mapping[str, str], name: str) -> int | None:
    """The value of `name`, None if it is absent; raises `PerfdError` if it is not a whole number."""
    text = query.get(name)
    if text is None:
        return None
    if not (text.isdecimal() and len(text) <= _MOST_DIGITS):
        raise PerfdError(f"`{name}` must be a whole number.")
    return int(text)

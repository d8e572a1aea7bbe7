"""Rows that only the aggregator has, kept elsewhere while the database takes none.

Batches wait in the stream or with agents. What is known of alerts, of what was announced, and of captures
would be lost if another aggregator took over before the database is back, and it would announce alerts again.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any

import msgspec

from perfd.aggregator.history.history_rows import RowKind, Statement
from perfd.rules.rule_model import EngineState

_KEYS: dict[RowKind, Sequence[int]] = {
    RowKind.ALERT: (0, 1, 2, 5),
    RowKind.ENGINE: (),
    RowKind.EXPORTER: (0,),
    RowKind.CAPTURE: (0,),
    RowKind.NODE_MEMORY: (0, 1, 2),
}
"""The values that name a row, for each kind that is kept."""
_KINDS = {kind.value: kind for kind in _KEYS}
_LEVEL = 1
"""Of compression: it is encoded at each change."""
_MOST_BYTES = 64 << 20
"""Of the decompressed rows: no more than a queue holds."""
_ROWS = msgspec.msgpack.Decoder(list[tuple[str, tuple[Any, ...]]])
_ENGINE = msgspec.msgpack.Decoder(EngineState)
"""Made at import: msgspec 0.22 crashes if two threads first decode a type concurrently."""


class UnstoredRows:
    """The newest of each row that the database did not take yet. Not thread-safe."""

    def __init__(self) -> None:
        self._rows: dict[tuple[Any, ...], Statement] = {}

    def __bool__(self) -> bool:
        return bool(self._rows)

    def add(self, statements: Sequence[Statement]) -> bool:
        """Add those that are kept; whether there were any."""
        found = [one for one in statements if one[0] in _KEYS]
        for kind, values in found:
            self._rows[kind, *(values[place] for place in _KEYS[kind])] = kind, values
        return bool(found)

    def clear(self) -> None:
        """Forget all: they are stored."""
        self._rows.clear()

    def encoded(self) -> bytes:
        """All of them, as `unstored` reads them."""
        rows = [(kind.value, values) for kind, values in self._rows.values()]
        return zlib.compress(msgspec.msgpack.encode(rows), _LEVEL)


def unstored(body: bytes, stored: EngineState | None) -> list[Statement]:
    """The rows of `encoded` that are newer than a history whose rules were evaluated until `stored`.

    Empty if they are older, which they are where they could not be cleared, or if they cannot be read.
    """
    try:
        plain = zlib.decompressobj().decompress(body, _MOST_BYTES)
        # A newer version may keep further kinds.
        rows = [(_KINDS[kind], values) for kind, values in _ROWS.decode(plain) if kind in _KINDS]
        evaluated = [_ENGINE.decode(values[0]).time_unix_s for kind, values in rows if kind is RowKind.ENGINE]
    except (zlib.error, msgspec.DecodeError, ValueError, IndexError):
        return []
    if stored is not None and max(evaluated, default=float("-inf")) <= stored.time_unix_s:
        return []
    return rows

"""Pages of long lists: small by default, with a maximum, and where the next one begins."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from perfd.mcp.parameters import Parameter

OFFSET = Parameter(
    name="offset", kind="integer", description="Entries to leave out first.", default=0, minimum=0
)


def limit(default: int, maximum: int) -> Parameter:
    """The parameter `limit`, with a default and a maximum that its description names."""
    return Parameter(
        name="limit",
        kind="integer",
        description=f"Entries of the answer, at most {maximum}.",
        default=default,
        minimum=1,
        maximum=maximum,
    )


def page(entries: Sequence[Any], offset: int, most: int) -> tuple[Sequence[Any], dict[str, Any]]:
    """The entries of a page, and `{"offset", "limit", "total", "next_offset"}` (null: the last page)."""
    shown = entries[offset : offset + most]
    after = offset + len(shown)
    return shown, {
        "offset": offset,
        "limit": most,
        "total": len(entries),
        "next_offset": after if shown and after < len(entries) else None,
    }

"""Names of jobs that other systems and file systems accept."""

from __future__ import annotations

import hashlib
import re

_MAX_LENGTH = 100
"""Longest name without its hash; file systems and other systems limit names."""


def plain_name(name: str) -> str:
    """The name itself, or one of letters, digits, `_`, `.` and `-`, made unique by a hash at its end."""
    plain = re.sub(r"[^A-Za-z0-9_.-]", "-", name)[:_MAX_LENGTH].lstrip(".")
    if plain == name and plain:
        return plain
    return f"{plain}-{hashlib.sha256(name.encode('utf-8', 'surrogatepass')).hexdigest()[:8]}"

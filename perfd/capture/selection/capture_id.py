"""Names of captures and sessions: safe as file names and as arguments, whatever their origin."""

from __future__ import annotations

import re

from perfd.errors import CaptureError

_CAPTURE_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_UNSAFE = re.compile(r"[^A-Za-z0-9_-]+")
_MAX_SLUG = 64
"""Characters of a part of a name: file names have at most 255."""


def check_capture_id(capture_id: str) -> str:
    """The id itself; raises `CaptureError` if it could leave a directory or look like an option."""
    if not _CAPTURE_ID.fullmatch(capture_id) or ".." in capture_id:
        raise CaptureError(
            f"{capture_id[:120]!r} is not a capture id: use letters, digits, '.', '_' and '-' "
            "(no '..'), at most 100, the first a letter or digit."
        )
    return capture_id


def slug(text: str) -> str:
    """`text` with everything unsafe replaced by `-`; never empty."""
    return _UNSAFE.sub("-", text).strip("-_")[:_MAX_SLUG] or "unnamed"

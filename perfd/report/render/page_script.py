"""The script of a report: the page's own zoom, in the file itself, as a report needs no network."""

from __future__ import annotations

import hashlib
from base64 import b64encode
from importlib import resources

_FILES = ("format.js", "zoom.js")
"""Of the page; neither imports anything, so that together they are one module."""
_START = """
zoomFigures(document, { s: duration, step: (value, span) => `step ${fixed(value, span < 10 ? 1 : 0)}` });
"""

SCRIPT = (
    "".join(
        resources.files("perfd.web").joinpath("static", name).read_text(encoding="utf-8") for name in _FILES
    )
    + _START
)
SCRIPT_SOURCE = f"'sha256-{b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode()}'"
"""The script in a Content-Security-Policy."""

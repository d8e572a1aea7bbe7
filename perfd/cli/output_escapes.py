"""Standard output that shows control characters as escapes, apart because most commands need no console."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO, cast

from perfd.formatting import CONTROL_CHARACTERS, printable_text

_CONTROL = re.compile(f"\x1b(?!\\[[0-9;]*m)|(?!\x1b)[{CONTROL_CHARACTERS}]")
"""What of an untrusted text would do more to a terminal than color it; colors are rich's own."""


class _SafeStream:
    """A text stream that writes control characters as escapes."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        self._stream.write(_CONTROL.sub(lambda found: printable_text(found[0]), text))
        return len(text)

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401  (as the stream has it)
        return getattr(self._stream, name)


@contextmanager
def safe_output() -> Iterator[None]:
    """What is printed meanwhile changes a terminal's colors only, whatever texts of jobs are in it."""
    output, sys.stdout = sys.stdout, cast("TextIO", _SafeStream(sys.stdout))
    try:
        yield
    finally:
        sys.stdout = output

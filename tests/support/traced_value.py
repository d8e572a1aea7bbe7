"""Follows one value through perfd: the modules of which a function gets it, holds it or gives it back."""

from __future__ import annotations

import dataclasses
import struct
import sys
import threading
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import perfd_collectors

import perfd

_ROOTS = [Path(package.__file__ or "").parent for package in (perfd, perfd_collectors)]
_NOT_THEIRS = ("testing",)
_MOST_ITEMS = 5_000
_MOST_DEPTH = 6
_PLAIN = (list, tuple, set, frozenset, deque)


@cache
def _module_in(file: str) -> str | None:
    """The path of one of their modules below its package; asked for at every call."""
    path = Path(file)
    root = next((root for root in _ROOTS if root in path.parents), None)
    module = str(path.relative_to(root)) if root else None
    return None if module is None or module.startswith(_NOT_THEIRS) else module


class TracedValue:
    """Numbers, and texts that print them, which nothing else in the run has.

    `encoded` are whole numbers as bytes, in the forms in which files and messages have them.
    """

    def __init__(
        self,
        numbers: tuple[float, ...],
        texts: tuple[str, ...] = (),
        integers: tuple[int, ...] = (),
        encoded: tuple[bytes, ...] = (),
    ) -> None:
        self._numbers = numbers
        self._texts = texts
        self._integers = integers
        packed = (struct.pack("<d", one) for one in numbers)
        self._bytes = [*packed, *(text.encode() for text in texts), *encoded]
        self._seen: set[tuple[str, str]] = set()
        self._looking = threading.local()
        self.paused = False
        """Whether calls are not looked at for a while: that takes far longer than they do."""

    @property
    def modules(self) -> set[str]:
        """Paths below `perfd/` or `perfd_collectors/`."""
        return {module for module, _ in self._seen}

    @contextmanager
    def followed(self) -> Iterator[None]:
        """Look at every call in this thread and in those that start here."""
        threading.setprofile(self._look)
        sys.setprofile(self._look)
        try:
            yield
        finally:
            sys.setprofile(None)
            threading.setprofile(None)

    def _look(self, frame: FrameType, event: str, result: object) -> None:
        if self.paused or event not in {"call", "return"} or getattr(self._looking, "now", False):
            return
        code = frame.f_code
        module = _module_in(code.co_filename)
        if module is None or (module, code.co_name) in self._seen:
            return
        self._looking.now = True
        try:
            names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
            given = (
                [result, *(one for n, one in frame.f_locals.items() if n != "self")]
                if event == "return"
                else [frame.f_locals.get(n) for n in names if n != "self"]
            )
            if any(self._is_in(one) for one in given):
                self._seen.add((module, code.co_name))
        finally:
            self._looking.now = False

    def _is_in(self, thing: Any, depth: int = 0) -> bool:
        if isinstance(thing, float):
            return any(abs(thing - number) < 1e-9 for number in self._numbers)
        if isinstance(thing, int):
            return thing in self._integers
        if isinstance(thing, str):
            return any(text in thing for text in self._texts)
        if isinstance(thing, (bytes, bytearray, memoryview)):
            return any(part in bytes(thing) for part in self._bytes)
        if isinstance(thing, np.ndarray):
            return self._is_in_array(thing)
        return depth < _MOST_DEPTH and any(self._is_in(one, depth + 1) for one in _parts(thing))

    def _is_in_array(self, array: np.ndarray[Any, Any]) -> bool:
        if array.dtype.kind == "f":
            return any(bool(np.isclose(array, one, rtol=1e-6, atol=0).any()) for one in self._numbers)
        if array.dtype.kind == "V":
            return self._is_in(array.tobytes())
        return array.dtype.kind in "iu" and bool(np.isin(array, self._integers).any())


def _parts(thing: Any) -> list[Any]:
    """What a container or a record holds; nothing for objects that keep state of their own."""
    if isinstance(thing, Mapping):
        return list(thing.values())[:_MOST_ITEMS]
    if isinstance(thing, _PLAIN) or type(thing).__name__ == "array":
        return list(thing)[:_MOST_ITEMS]
    if dataclasses.is_dataclass(thing) and not isinstance(thing, type):
        return [getattr(thing, field.name, None) for field in dataclasses.fields(thing)]
    return []

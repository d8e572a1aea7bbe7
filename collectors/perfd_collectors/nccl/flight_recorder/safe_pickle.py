"""Reads pickles of plain data that nobody vouches for, without running anything in them.

A pickle is a program: it may call any function that can be imported. Here each of its instructions is
looked at before the first is run, and those that name, call or build anything but plain data are refused.
What is left makes dictionaries, lists, tuples, texts, bytes, numbers, True, False and None. Tuples may not
lie in each other deeply: Python looks for one among a dictionary's keys by a recursion that nothing bounds.
"""

from __future__ import annotations

import io
import pickle
import pickletools
from typing import Any, NoReturn

MAX_BYTES = 64 << 20
_MAX_INSTRUCTIONS = 4_000_000
"""One byte can ask for an empty list of 56. Dumps have about 20 bytes an instruction."""
_MAX_DEPTH = 100

_ALLOWED = frozenset(
    {
        "PROTO", "FRAME", "STOP", "MARK", "POP", "POP_MARK", "DUP", "MEMOIZE", "PUT", "BINPUT", "LONG_BINPUT",
        "GET", "BINGET", "LONG_BINGET", "NONE", "NEWTRUE", "NEWFALSE", "INT", "BININT", "BININT1", "BININT2",
        "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT", "STRING", "BINSTRING", "SHORT_BINSTRING", "UNICODE",
        "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8", "BINBYTES", "SHORT_BINBYTES", "BINBYTES8",
        "BYTEARRAY8", "EMPTY_TUPLE", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3", "EMPTY_LIST", "LIST", "APPEND",
        "APPENDS", "EMPTY_DICT", "DICT", "SETITEM", "SETITEMS",
    }
)  # fmt: skip
_PUT = frozenset({"PUT", "BINPUT", "LONG_BINPUT"})
_GET = frozenset({"GET", "BINGET", "LONG_BINGET"})
_TO_MARK = frozenset({"LIST", "DICT", "APPENDS", "SETITEMS", "POP_MARK", "TUPLE"})
_TAKES = {"APPEND": 1, "SETITEM": 2, "POP": 1, "TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_SILENT = frozenset({"PROTO", "FRAME", "STOP", "APPEND", "APPENDS", "SETITEM", "SETITEMS", "POP", "POP_MARK"})
"""They leave nothing on the stack."""


class UnsafePickleError(ValueError):
    """The bytes are no pickle of plain data; the message says why."""


def loads(data: bytes) -> Any:  # noqa: ANN401  (plain data of any kind)
    """The object that `data` holds; raises `UnsafePickleError` for all but whole pickles of plain data."""
    if len(data) > MAX_BYTES:
        raise UnsafePickleError(f"it is larger than {MAX_BYTES >> 20} MiB")
    _look_at(data)
    try:
        return _PlainUnpickler(io.BytesIO(data)).load()
    except (
        pickle.UnpicklingError, EOFError, ValueError, TypeError, AttributeError, IndexError, KeyError,
        OverflowError, MemoryError, RecursionError,
    ) as error:  # fmt: skip
        raise UnsafePickleError(f"it is damaged ({error})") from error


def _look_at(data: bytes) -> None:
    try:
        reason = _forbidden(data)
    except (ValueError, TypeError, LookupError, OverflowError, MemoryError) as error:
        raise UnsafePickleError(f"it is damaged ({error})") from error
    if reason:
        raise UnsafePickleError(reason)


def _forbidden(data: bytes) -> str:
    """Why the instructions may not be run, empty when they may."""
    stack = _Depths()
    for number, (instruction, argument, _) in enumerate(pickletools.genops(data)):
        name = instruction.name
        if name not in _ALLOWED:
            return f"it holds the instruction {name}, which is no plain data"
        if number >= _MAX_INSTRUCTIONS:
            return f"it has more than {_MAX_INSTRUCTIONS:,} instructions"
        # The unpickler makes room for every number below, whether it is used or not.
        if name in _PUT and (not isinstance(argument, int) or argument > 2 * len(stack.memo) + 1024):
            return "it asks for memory that it does not use"
        if stack.run(name, argument) > _MAX_DEPTH:
            return f"its tuples lie in each other over {_MAX_DEPTH} deep"
    return ""


class _Depths:
    """The unpickler's stack, with only how deep tuples lie in each other for each object."""

    def __init__(self) -> None:
        self.memo: dict[object, int] = {}
        self._stack: list[int] = []
        self._marks: list[int] = []

    def run(self, name: str, argument: object) -> int:
        """The depth of what an instruction leaves; raises `LookupError` where it lacks what it needs."""
        if name == "MARK":
            self._marks.append(len(self._stack))
            return 0
        if name in _PUT or name == "MEMOIZE":
            self.memo[len(self.memo) if argument is None else argument] = self._stack[-1]
            return 0
        taken = self._take(name)
        if name in _SILENT:
            return 0
        depth = 0
        if name in _GET:
            depth = self.memo[argument]
        elif name == "DUP":
            depth = self._stack[-1]
        elif name.startswith("TUPLE"):
            depth = 1 + max(taken, default=0)
        self._stack.append(depth)
        return depth

    def _take(self, name: str) -> list[int]:
        count = _TAKES.get(name, 0)
        if name in _TO_MARK or (name == "POP" and self._marks and self._marks[-1] == len(self._stack)):
            count = len(self._stack) - self._marks.pop()
        if count > len(self._stack):
            raise LookupError(f"{name} lacks what it needs")
        taken = self._stack[len(self._stack) - count :]
        del self._stack[len(self._stack) - count :]
        return taken


class _PlainUnpickler(pickle.Unpickler):
    """Refuses to look up anything, should an instruction for that get so far."""

    def find_class(self, module: str, name: str, /) -> NoReturn:
        raise pickle.UnpicklingError(f"{module}.{name} is no plain data")

    def persistent_load(self, pid: object, /) -> NoReturn:
        raise pickle.UnpicklingError(f"{pid!r} is no plain data")

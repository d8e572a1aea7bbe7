"""Reads untrusted pickles of plain data without running any code in them.

A pickle is a program that may call any importable function. All its instructions are checked before the
first one runs; those that name, call or build anything but plain data are refused. Allowed are
dictionaries, lists, tuples, strings, bytes, numbers, True, False and None. The nesting of tuples is limited,
because Python hashes a tuple that is a dictionary key by unbounded recursion.
"""

from __future__ import annotations

import io
import pickle
import pickletools
import warnings
from typing import Any, NoReturn

MAX_BYTES = 64 << 20
"""Largest pickle that is read unless the caller says otherwise. Chosen, not measured."""
MAX_INSTRUCTIONS = 4_000_000
"""The same of instructions: one of a byte can create an empty list of 56. Dumps of the flight recorder
have about 20 bytes per instruction, snapshots of memory 3."""
_MAX_DEPTH = 100
"""Nesting of tuples; far below Python's recursion limit of 1,000."""

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
"""Instructions that leave nothing on the stack."""


class UnsafePickleError(ValueError):
    """The bytes are not a pickle of plain data; the message gives the reason."""


def loads(data: bytes, *, max_bytes: int = MAX_BYTES, max_instructions: int = MAX_INSTRUCTIONS) -> Any:  # noqa: ANN401  (plain data of any kind)
    """The object in `data`; raises `UnsafePickleError` for anything but a complete pickle of plain data."""
    if len(data) > max_bytes:
        raise UnsafePickleError(f"it is larger than {max_bytes >> 20} MiB")
    # Python warns of an invalid escape in a string; whoever wrote the pickle chose it.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return _loaded(data, max_instructions)


def _loaded(data: bytes, max_instructions: int) -> Any:  # noqa: ANN401  (plain data of any kind)
    _check(data, max_instructions)
    try:
        return _PlainUnpickler(io.BytesIO(data)).load()
    except (
        pickle.UnpicklingError, EOFError, ValueError, TypeError, AttributeError, IndexError, KeyError,
        OverflowError, MemoryError, RecursionError,
    ) as error:  # fmt: skip
        raise UnsafePickleError(f"it is damaged ({error})") from error


def _check(data: bytes, max_instructions: int) -> None:
    try:
        reason = _forbidden(data, max_instructions)
    except (ValueError, TypeError, LookupError, OverflowError, MemoryError) as error:
        raise UnsafePickleError(f"it is damaged ({error})") from error
    if reason:
        raise UnsafePickleError(reason)


def _forbidden(data: bytes, max_instructions: int) -> str:
    """Why the instructions may not run; empty when they may."""
    stack = _Depths()
    for number, (instruction, argument, _) in enumerate(pickletools.genops(data)):
        name = instruction.name
        if name not in _ALLOWED:
            return f"it holds the instruction {name}, which is not plain data"
        if number >= max_instructions:
            return f"it has more than {max_instructions:,} instructions"
        # The unpickler allocates all memo slots up to this number, used or not.
        if name in _PUT and (not isinstance(argument, int) or argument > 2 * len(stack.memo) + 1024):
            return "it allocates memory that it does not use"
        if stack.run(name, argument) > _MAX_DEPTH:
            return f"its tuples are nested more than {_MAX_DEPTH} deep"
    return ""


class _Depths:
    """Simulates the unpickler's stack, tracking only how deep each object's tuples are nested."""

    def __init__(self) -> None:
        self.memo: dict[object, int] = {}
        self._stack: list[int] = []
        self._marks: list[int] = []

    def run(self, name: str, argument: object) -> int:
        """The depth of an instruction's result; raises `LookupError` when its operands are missing."""
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
            raise LookupError(f"{name} lacks operands")
        taken = self._stack[len(self._stack) - count :]
        del self._stack[len(self._stack) - count :]
        return taken


class _PlainUnpickler(pickle.Unpickler):
    """Refuses all lookups, should such an instruction pass the checks."""

    def find_class(self, module: str, name: str, /) -> NoReturn:
        raise pickle.UnpicklingError(f"{module}.{name} is not plain data")

    def persistent_load(self, pid: object, /) -> NoReturn:
        raise pickle.UnpicklingError(f"{pid!r} is not plain data")

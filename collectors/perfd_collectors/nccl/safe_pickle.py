"""Reads pickles of plain data that nobody vouches for, without running anything in them.

A pickle is a program: it may call any function that can be imported. Here each of its instructions is
looked at before the first is run, and those that name, call or build anything but plain data are refused.
What is left makes dictionaries, lists, tuples, sets, texts, bytes, numbers, True, False and None.
"""

from __future__ import annotations

import io
import pickle
import pickletools
from typing import Any, NoReturn

MAX_BYTES = 64 << 20

_ALLOWED = frozenset(
    {
        "PROTO", "FRAME", "STOP", "MARK", "POP", "POP_MARK", "DUP", "MEMOIZE", "PUT", "BINPUT", "LONG_BINPUT",
        "GET", "BINGET", "LONG_BINGET", "NONE", "NEWTRUE", "NEWFALSE", "INT", "BININT", "BININT1", "BININT2",
        "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT", "STRING", "BINSTRING", "SHORT_BINSTRING", "UNICODE",
        "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8", "BINBYTES", "SHORT_BINBYTES", "BINBYTES8",
        "BYTEARRAY8", "EMPTY_TUPLE", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3", "EMPTY_LIST", "LIST", "APPEND",
        "APPENDS", "EMPTY_DICT", "DICT", "SETITEM", "SETITEMS", "EMPTY_SET", "ADDITEMS", "FROZENSET",
    }
)  # fmt: skip
_MEMO = frozenset({"PUT", "BINPUT", "LONG_BINPUT"})


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
    except (ValueError, TypeError, IndexError, OverflowError, MemoryError) as error:
        raise UnsafePickleError(f"it is damaged ({error})") from error
    if reason:
        raise UnsafePickleError(reason)


def _forbidden(data: bytes) -> str:
    """Why the instructions may not be run, empty when they may."""
    memoised = 0
    for instruction, argument, _ in pickletools.genops(data):
        if instruction.name not in _ALLOWED:
            return f"it holds the instruction {instruction.name}, which is no plain data"
        if instruction.name in _MEMO:
            memoised += 1
            # The unpickler makes room for every number below, whether it is used or not.
            if not isinstance(argument, int) or argument > 2 * memoised + 1024:
                return "it asks for memory that it does not use"
    return ""


class _PlainUnpickler(pickle.Unpickler):
    """Refuses to look up anything, should an instruction for that get so far."""

    def find_class(self, module: str, name: str, /) -> NoReturn:
        raise pickle.UnpicklingError(f"{module}.{name} is no plain data")

    def persistent_load(self, pid: object, /) -> NoReturn:
        raise pickle.UnpicklingError(f"{pid!r} is no plain data")

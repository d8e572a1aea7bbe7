"""What an object holds: containers' items and bytes of arrays, counted and not measured."""

from __future__ import annotations

import gc
import types
from collections import deque
from dataclasses import dataclass

import numpy as np

_CODE = (
    type,
    types.ModuleType,
    types.FunctionType,
    types.BuiltinFunctionType,
    types.CodeType,
    types.FrameType,
)


@dataclass(frozen=True, slots=True)
class Held:
    """Of everything that can be reached from an object, each thing once."""

    items: int
    """Of lists, tuples, dicts, sets and deques."""
    array_bytes: int
    """Of arrays with their spare room."""


def held_by(*roots: object) -> Held:
    """Count what can be reached from `roots`, but code and what only code refers to."""
    seen: set[int] = set()
    waiting: list[object] = list(roots)
    items = array_bytes = 0
    while waiting:
        one = waiting.pop()
        if id(one) in seen or isinstance(one, _CODE):
            continue
        seen.add(id(one))
        if isinstance(one, np.ndarray):
            array_bytes += 0 if isinstance(one.base, np.ndarray) else one.nbytes
            waiting.append(one.base)
            continue
        if isinstance(one, (list, tuple, dict, set, frozenset, deque)):
            items += len(one)
        waiting.extend(gc.get_referents(one))
    return Held(items, array_bytes)

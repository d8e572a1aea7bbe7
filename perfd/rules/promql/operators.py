"""What the binary operators do to numbers: those of IEEE 754, never an exception."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

ARITHMETIC: Mapping[str, Callable[[Any, Any], Any]] = {
    "+": np.add,
    "-": np.subtract,
    "*": np.multiply,
    "/": np.divide,
    "%": np.fmod,
    "^": np.power,
}
COMPARISON: Mapping[str, Callable[[Any, Any], Any]] = {
    "==": np.equal,
    "!=": np.not_equal,
    ">": np.greater,
    "<": np.less,
    ">=": np.greater_equal,
    "<=": np.less_equal,
}
SETS = frozenset({"and", "or", "unless"})

"""Parsing shared by the engines' logs: `key: value` parts, and arguments as printed by Python."""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Mapping
from typing import Any

ANSI = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")
_NUMBER = re.compile(r"\s*(-?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?|nan|inf)\s*(%?)")
_ARGUMENT = re.compile(r"""\b(\w+)=('(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|[\w.+-]+)(?=[,)\s]|$)""")


def parts(text: str) -> Mapping[str, str]:
    """The parts of `a: 1, b (x): 2` by key; parts without a colon are skipped, the first of two wins."""
    found: dict[str, str] = {}
    for part in text.split(","):
        key, colon, value = part.rpartition(": ")
        if colon:
            found.setdefault(key.strip(), value.strip())
    return found


def number(text: str | None) -> float | None:
    """A number, a percentage as a ratio; None for anything else, including NaN."""
    match = _NUMBER.match(text or "")
    if match is None:
        return None
    value = float(match[1])
    if not math.isfinite(value):
        return None
    return value / 100 if match[2] else value


def arguments(text: str) -> Mapping[str, Any]:
    """The arguments of `Name(a='x', b=8)` by name, as Python literals."""
    return {match[1]: _literal(match[2]) for match in _ARGUMENT.finditer(text)}


def _literal(text: str) -> object:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text.removeprefix("torch.")

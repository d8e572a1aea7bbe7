"""Fields as they are printed: `key: value` pairs, and numbers.

Anything but exactly one finite number is `None`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping

_NUMBER = re.compile(r"[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?", re.ASCII)
_GROUPED = re.compile(r"[+-]?\d{1,3}(?:,\d{3})+(?:\.\d*)?|[+-]?\d+(?:\.\d*)?", re.ASCII)
_MAX_EXPONENT_CHARS = 9
"""Longer exponents overflow a double anyway."""
_PAIR = re.compile(r"'([\w/.()@-]{1,80})': ('?)([^',{}]{1,40})\2(?=, '|$)", re.ASCII)
_NESTED = re.compile(r"'[\w/.()@-]{1,80}': \{[^{}]{0,1000}\}(?:, )?", re.ASCII)
_WRAPPED = re.compile(
    r"\b(?:np\.(?:float|int|uint)[0-9]{1,3}|tensor|array)\(\[?([^()\[\],\s]{1,40})\]?"
    r"(?:, [^()]{1,80}(?:\([^()]{0,40}\))?)?\)"
)
"""How NumPy 2, PyTorch and JAX print one number: `np.float64(0.5)`, `tensor(0.5, device='cuda:0')`."""
_SUFFIXES = {"": 0, "K": 3, "M": 6, "G": 9, "B": 9, "T": 12}
_MAX_KEY_CHARS = 80
"""Longer keys are not a trainer's."""


def fields(text: str, *, complete: bool) -> list[tuple[str, str]]:
    """The `key: value` (or `key=value`) pairs between bars.

    The part after the last bar ends only with the line, and is skipped unless
    `complete`.
    """
    pieces = text.split("|")
    if not complete:
        pieces.pop()
    pairs = []
    for piece in pieces:
        colon, equals = piece.find(":"), piece.find("=")
        cut = min((at for at in (colon, equals) if at > 0), default=-1)
        key = piece[:cut].strip()
        if cut > 0 and is_plain_key(key):
            pairs.append((key, piece[cut + 1 :].strip()))
    return pairs


def dict_numbers(text: str) -> dict[str, float]:
    """The numbers of a Python dict whose text is without braces, also those written as strings."""
    pairs = _PAIR.findall(plain_numbers(text))
    return {key: value for key, _, figure in pairs if (value := number(figure)) is not None}


def without_nested_dicts(text: str) -> str:
    """The text of a Python dict without the dicts in it."""
    return _NESTED.sub("", text)


def plain_numbers(text: str) -> str:
    """The text with numbers as such that were printed as objects of NumPy, PyTorch or JAX."""
    return _WRAPPED.sub(r"\1", text) if "(" in text else text


def is_plain_key(key: str) -> bool:
    """Whether a key is plausible, and not the result of two merged lines."""
    return 0 < len(key) <= _MAX_KEY_CHARS and key.isascii() and key.isprintable() and not key[0].isdigit()


def number(text: str, power: int = 0) -> float | None:
    """The value of a text that is exactly one number; None for NaN, infinity and anything else.

    It is scaled by ten to the `power` in decimal: `243.6` with 12 is exactly 243.6e12.
    """
    text = text.strip()
    if not _NUMBER.fullmatch(text):
        return None
    if power == 0:
        value = float(text)
    else:
        digits, _, exponent = text.lower().partition("e")
        value = float(f"{digits}e{int(exponent[:_MAX_EXPONENT_CHARS] or 0) + power}")
    return value if math.isfinite(value) else None


def positive(text: str, power: int = 0) -> float | None:
    """As `number`, but None unless positive: other times, rates and sizes are not measurements."""
    value = number(text, power)
    return value if value is not None and value > 0 else None


def integer(text: str) -> int | None:
    """The value of a text that is one non-negative integer (`32`, `794.0`, `1.63e+6`); else None."""
    value = number(text)
    return int(value) if value is not None and value >= 0 and value == int(value) else None


def grouped(text: str) -> float | None:
    """As `number`, for numbers with thousands separators (`10,050`)."""
    text = text.strip()
    return float(text.replace(",", "")) if _GROUPED.fullmatch(text) else None


def with_suffix(text: str, power: int = 0) -> float | None:
    """As `number`, for numbers with a decimal suffix (`1.258B`, `634K`)."""
    text = text.strip()
    suffix = text[-1:].upper() if text[-1:].isalpha() else ""
    if suffix not in _SUFFIXES:
        return None
    return number(text[: len(text) - len(suffix)], _SUFFIXES[suffix] + power)


def sorted_fields(
    pairs: Iterable[tuple[str, str]],
    names: Mapping[str, tuple[str, int]],
    read: Callable[[str, int], float | None] = number,
) -> tuple[dict[str, float], dict[str, float], dict[str, float]]:
    """Numbers that `names` gives a field and the power of ten of its unit; losses; and all others."""
    values: dict[str, float] = {}
    losses: dict[str, float] = {}
    extras: dict[str, float] = {}
    for key, text in pairs:
        field, power = names.get(key, ("", 0))
        value = read(text, power)
        if value is not None and is_plain_key(key):
            (values if field else losses if "loss" in key else extras)[field or key] = value
    return values, losses, extras

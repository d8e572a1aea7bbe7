"""Numbers on the command line, as types of argparse."""

from __future__ import annotations

import argparse
import math


def positive(text: str) -> float:
    """A number above zero; what is none is refused with a sentence."""
    value = _number(text)
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} must be a number above 0.")
    return value


def number_from_zero(text: str) -> float:
    """A number that is not below zero; what is none is refused with a sentence."""
    value = _number(text)
    if not 0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} must be 0 or greater.")
    return value


def positive_whole(text: str) -> int:
    """A whole number from 1; what is none is refused with a sentence."""
    if not (text.isascii() and text.isdecimal() and int(text) > 0):
        raise argparse.ArgumentTypeError(f"{text!r} must be a whole number, 1 or greater.")
    return int(text)


def whole_from_zero(text: str) -> int:
    """A whole number from 0; what is none is refused with a sentence."""
    if not (text.isascii() and text.isdecimal()):
        raise argparse.ArgumentTypeError(f"{text!r} must be a whole number, 0 or greater.")
    return int(text)


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan

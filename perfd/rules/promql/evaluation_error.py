"""The error of an evaluation."""

from __future__ import annotations


class EvaluationError(Exception):
    """The current series do not allow the expression, for example because a match is ambiguous."""

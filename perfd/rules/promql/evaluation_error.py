"""What can go wrong while an expression is evaluated."""

from __future__ import annotations


class EvaluationError(Exception):
    """The series of the moment do not allow the expression, for example because a match is ambiguous."""

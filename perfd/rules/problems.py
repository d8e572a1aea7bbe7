"""Errors in the text of an expression or a template."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Problem:
    """One error, at a character of the text."""

    message: str
    offset: int


class TextError(Exception):
    """A text cannot be compiled; `problems` has each error in it."""

    def __init__(self, problems: list[Problem]) -> None:
        super().__init__("; ".join(problem.message for problem in problems))
        self.problems = problems

"""Tables with a row per report: spaCy's, Chainer's, and those of loops: by commas, bars or gaps."""

from __future__ import annotations

import re
from collections.abc import Sequence

from perfd_collectors.training_log.format_parser import FormatParser, LogContext, LogLine
from perfd_collectors.training_log.printed_fields import integer, number
from perfd_collectors.training_log.step_fields import add_step, fields_of

_SPACY = re.compile(r"E {1,8}# {1,12}LOSS [A-Z_ ]{1,400}SCORE\s{0,8}$")
_CHAINER = re.compile(r"(?=[^|]{0,400}\biteration\b)(?=[^|]{0,400}\bmain/loss\b)[\w/ ]{1,400}$")
_OF_A_LOOP = re.compile(
    r"(?=[\w/ ,|().%\t]{0,200}\b(?:global_step|step|iter|iteration)\b)(?=[\w/ ,|().%\t]{0,300}loss)"
    r"[|\s]{0,8}[A-Za-z_][\w/ ,|().%\t]{1,400}$",
    re.IGNORECASE | re.ASCII,
)
_STEPS = ("global_step", "step", "iter", "iteration")
_GAP = re.compile(r" {2,}")
_RULE = re.compile(r"[-|:+= ]{3,400}$")
_NO_NUMBER = frozenset({"", "-", "nan", "inf", "none", "n/a"})


class ColumnTableParser(FormatParser):
    """One log's tables. The header names the columns, of which one is the step."""

    keywords: Sequence[bytes] = (b" #  ", b"main/loss", b"step", b"Step", b"STEP", b"iter", b"Iter", b"ITER")

    def __init__(self, job: LogContext) -> None:
        super().__init__(job)
        self._columns: Sequence[str] = ()
        self._of_a_loop: re.Pattern[str] | None = None
        """What separates the cells of a loop's own table."""

    @property
    def in_block(self) -> bool:
        """Whether rows may come next."""
        return bool(self._columns)

    def parse(self, line: LogLine) -> bool:
        text = line.text.strip()
        if _SPACY.match(text) or _CHAINER.match(text):
            self._columns, self._of_a_loop = _GAP.split(text), None
            return True
        if _OF_A_LOOP.match(text) and (header := _header(text)):
            self._of_a_loop, self._columns = header
            return True
        if self._of_a_loop is not None:
            return _RULE.match(text) is not None or self._loop_row(self._of_a_loop, text)
        return bool(self._columns) and (_RULE.match(text) is not None or self._row(text))

    def _loop_row(self, separator: re.Pattern[str], text: str) -> bool:
        cells = _cells(separator, text)
        figures = [number(cell) for cell in cells]
        if len(cells) != len(self._columns) or any(
            figure is None and cell.lower() not in _NO_NUMBER
            for figure, cell in zip(figures, cells, strict=True)
        ):
            return False
        row = {
            name: figure for name, figure in zip(self._columns, figures, strict=True) if figure is not None
        }
        step = next((integer(repr(row[name])) for name in row if name.lower() in _STEPS), None)
        found = fields_of((name, value) for name, value in row.items() if name.lower() not in _STEPS)
        if step is None or found.evaluates or not (found.losses or found.timed):
            return False
        self._out.describe_framework("training-loop")
        add_step(self._steps, self._out.job, step, found, None)
        return True

    def _row(self, text: str) -> bool:
        cells = [number(cell) for cell in text.split()]
        if len(cells) != len(self._columns) or None in cells:
            # Other output between rows is of others; a row with an empty cell does not say of which column.
            return False
        row = {name: cell for name, cell in zip(self._columns, cells, strict=True) if cell is not None}
        of_spacy = "#" in row
        step = integer(repr(row.get("#", row.get("iteration"))))
        if step is None:
            return False
        self._out.describe(framework="spacy" if of_spacy else "chainer")
        losses = {
            name.lower(): value
            for name, value in row.items()
            if name.startswith("LOSS ") or name == "main/loss"
        }
        self._add_step(step, {}, losses)
        return True


_SEPARATORS = (re.compile(r"\|"), re.compile(","), re.compile(r"\t| {2,}"))


def _header(text: str) -> tuple[re.Pattern[str], Sequence[str]] | None:
    """What separates the columns of a table with one of steps, and their names; None for other lines."""
    for separator in _SEPARATORS:
        names = _cells(separator, text)
        whole = len(set(names)) == len(names) >= _FEWEST_COLUMNS and all(map(_NAME.fullmatch, names))
        if whole and any(name.lower() in _STEPS for name in names):
            return separator, names
    return None


_FEWEST_COLUMNS = 2
"""A table has two columns at least."""
_NAME = re.compile(r"[A-Za-z_][\w/().% -]{0,60}", re.ASCII)


def _cells(separator: re.Pattern[str], text: str) -> list[str]:
    return [cell.strip() for cell in separator.split(text.strip().strip("|"))]

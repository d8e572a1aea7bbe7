"""Tables with a row per report: spaCy's and Chainer's."""

from __future__ import annotations

import re
from collections.abc import Sequence

from perfd_collectors.training_log.field_text import integer, number
from perfd_collectors.training_log.format_parser import FormatParser, LogContext
from perfd_collectors.training_log.log_lines import LogLine
from perfd_collectors.training_log.parser_output import training_step
from perfd_collectors.training_log.step_order import ProgressSource

_SPACY = re.compile(r"E {1,8}# {1,12}LOSS [A-Z_ ]{1,400}SCORE\s{0,8}$")
_CHAINER = re.compile(r"(?=[^|]{0,400}\biteration\b)(?=[^|]{0,400}\bmain/loss\b)[\w/ ]{1,400}$")
_GAP = re.compile(r" {2,}")
_RULE = re.compile(r"[- ]{3,400}$")


class ColumnTableParser(FormatParser):
    """One log's tables. The header names the columns, of which one is the step."""

    keywords: Sequence[bytes] = (b" #  ", b"main/loss")

    def __init__(self, job: LogContext) -> None:
        super().__init__(job)
        self._columns: Sequence[str] = ()

    @property
    def in_block(self) -> bool:
        """Whether rows may come next."""
        return bool(self._columns)

    def parse(self, line: LogLine) -> bool:
        """Parse a complete, undamaged line."""
        if not line.complete or line.damaged:
            return False
        text = line.text.strip()
        if _SPACY.match(text) or _CHAINER.match(text):
            self._columns = _GAP.split(text)
            return True
        return bool(self._columns) and (_RULE.match(text) is not None or self._row(text))

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
        self._steps.add(
            training_step(self._out.job, step, {}, losses, {}), None, family=ProgressSource.TRAINER
        )
        return True

"""Tables for a terminal of any width."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from rich import box
from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.table import Column, Table
from rich.text import Text

_LEAST_NAME = 24
"""Characters: longer words of a text column, such as kernel names, may go on in the next line."""


class TerminalTable(Table):
    """A table that breaks no number and no heading within a word.

    What does not fit gets less space between columns, then narrower text columns (those aligned to the left)
    without columns that are empty. What still does not fit is shown as further tables below, which repeat the
    first `keys` columns.
    """

    def __init__(self, title: str | None = None, *, keys: int = 1) -> None:
        super().__init__(box=box.SIMPLE_HEAD, pad_edge=False)
        self._name = title
        self._keys = keys

    def add_columns(self, names: Iterable[str], texts: int = 1) -> None:
        """Columns of which the first `texts` hold text, the others numbers."""
        for at, name in enumerate(names):
            text = at < texts
            self.add_column(
                name, justify="left" if text else "right", overflow="fold" if text else "ellipsis"
            )

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """The title, and the table in as many parts as the width demands."""
        if self._name is not None:
            yield Text(self._name, style="bold")
        if self.columns:
            yield from self._parts(console, options)

    def _parts(self, console: Console, options: ConsoleOptions) -> Iterator[Table]:
        natural = [_natural(console, options, one) for one in self.columns]
        everything = range(len(self.columns))
        for padding in (1, 0):
            if sum(natural) + self._frame(console, options, padding, len(natural)) <= options.max_width:
                yield self._part(everything, natural, padding)
                return
        least = [_least(console, options, column, natural[at]) for at, column in enumerate(self.columns)]
        filled = [at for at in everything if any(str(cell) for cell in self.columns[at].cells)]
        for part in self._split(console, options, least, filled):
            room = options.max_width - self._frame(console, options, 0, len(part))
            yield self._part(part, _shared([natural[at] for at in part], [least[at] for at in part], room), 0)

    def _split(
        self, console: Console, options: ConsoleOptions, least: Sequence[int], filled: Sequence[int]
    ) -> list[list[int]]:
        """Columns of each part; each has at least one besides the repeated ones."""
        keys = list(range(min(self._keys, len(least))))
        parts = [list(keys)]
        for at in filled:
            if at in keys:
                continue
            width = sum(least[one] for one in [*parts[-1], at])
            full = width + self._frame(console, options, 0, len(parts[-1]) + 1) > options.max_width
            if full and len(parts[-1]) > len(keys):
                parts.append(list(keys))
            parts[-1].append(at)
        return parts

    def _frame(self, console: Console, options: ConsoleOptions, padding: int, count: int) -> int:
        """Characters that a table of so many columns needs beside their contents."""
        empty = self._empty(padding)
        for _ in range(count):
            empty.add_column(width=1)
        return Measurement.get(console, options.update(width=10_000, max_width=10_000), empty).maximum - count

    def _empty(self, padding: int) -> Table:
        return Table(box=self.box, pad_edge=False, padding=(0, padding))

    def _part(self, chosen: Sequence[int], widths: Sequence[int], padding: int) -> Table:
        part = self._empty(padding)
        for at, width in zip(chosen, widths, strict=True):
            column = self.columns[at]
            part.add_column(
                column.header,
                justify=column.justify,
                overflow=column.overflow,
                no_wrap=column.no_wrap,
                style=column.style,
                width=width,
            )
        cells = [list(self.columns[at].cells) for at in chosen]
        for number, row in enumerate(self.rows):
            part.add_row(*(column[number] for column in cells), style=row.style)
        return part


def _natural(console: Console, options: ConsoleOptions, column: Column) -> int:
    """The width at which a column needs one line for each cell."""
    widths = [Measurement.get(console, options, cell).maximum for cell in (column.header, *column.cells)]
    return min(max(widths), column.max_width or max(widths))


def _least(console: Console, options: ConsoleOptions, column: Column, natural: int) -> int:
    """The narrowest that a column may become."""
    measured = [Measurement.get(console, options, cell) for cell in column.cells]
    heading = Measurement.get(console, options, column.header).minimum
    if column.no_wrap:
        return natural
    if column.justify == "right":
        return max([heading, *(cell.maximum for cell in measured)])
    return max(heading, min(_LEAST_NAME, max((cell.minimum for cell in measured), default=0)))


def _shared(natural: Sequence[int], least: Sequence[int], room: int) -> list[int]:
    """Widths that fit: the widest columns give way first."""
    widths = list(natural)
    while sum(widths) > room:
        able = [at for at, width in enumerate(widths) if width > least[at]]
        if not able:
            break
        widths[max(able, key=lambda at: widths[at])] -= 1
    return widths

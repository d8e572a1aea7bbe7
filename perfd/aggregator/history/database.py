"""The interface of a history database, which SQLite and PostgreSQL implement."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from perfd.aggregator.history.history_rows import Statement
from perfd.errors import PerfdError

Query = Callable[[str, Sequence[Any]], Iterable[tuple[Any, ...]]]
"""Runs a query with `?` for its parameters; returns the rows."""


class HistoryUnavailableError(PerfdError):
    """The database is temporarily unavailable; the message is the reason."""


class HistoryLockedError(PerfdError):
    """Another aggregator has the history."""


class HistoryDamagedError(PerfdError):
    """The database is damaged; `repair` may help."""


class UnstorableError(PerfdError):
    """A row that no table accepts, even if retried."""


class HistoryDatabase(Protocol):
    """Keeps rows. One thread opens, writes and closes; any thread may read, also after `close`."""

    @property
    def place(self) -> str:
        """Where it is, for people; without a password."""

    @property
    def remedy(self) -> str:
        """What to do when it cannot be written, in a sentence."""

    @property
    def required_at_start(self) -> bool:
        """Whether an aggregator must not start without what it wrote before."""

    @property
    def newest_steps_query(self) -> str:
        """`STEP_COLUMNS` and attempt of the newest attempt with each step: job, first step, limit."""

    @property
    def is_open(self) -> bool:
        """Whether it is open for writing."""

    @property
    def lost_rows(self) -> int:
        """Rows that repairs could not save since the process began."""

    @property
    def unreadable_pages(self) -> int:
        """Pages that repairs could not read at all; how many rows they had is not known."""

    def open(self) -> float | None:
        """Keep other aggregators out, bring tables up to date, and return the time retention came to.

        None in a new history. Raises `HistoryUnavailableError` if trying again may help, else
        `HistoryLockedError`, `HistoryDamagedError` or `PerfdError`.
        """

    def write(self, statements: Sequence[Statement]) -> None:
        """Write all or none; on return they survive a power cut. The same statements may be written again.

        Raises `UnstorableError` for a row that no table takes, else as `open`.
        """

    def tidy(self) -> None:
        """Called after each `write`: give back space when due. Raises as `open`."""

    def reading(self) -> AbstractContextManager[Query]:
        """Run queries inside it; they raise `HistoryUnavailableError` or `HistoryDamagedError`."""

    def repair(self) -> None:
        """Salvage the readable rows of a damaged history and leave it open; raises as `open`."""

    def close(self) -> None:
        """Release it for the next aggregator; may be called twice."""

"""What `perfd top` shows, and how keys change that: pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum


class Screen(StrEnum):
    """The screens of `perfd top`."""

    JOBS = "jobs"
    JOB = "job"
    SERVERS = "servers"
    HELP = "help"


@dataclass(frozen=True, slots=True, kw_only=True)
class ScreenPosition:
    """Which screen is shown, and which row is selected."""

    screen: Screen = Screen.JOBS
    job: str | None = None
    """The job that is looked at, or was last."""
    row: int = 0
    """The line of the list that Enter opens."""
    sort: str = ""
    """Order of the jobs, as /api/v1/fleet names it; empty: running and most costly jobs first."""
    down: bool = False
    words: str = ""
    """Only jobs with all of these words are shown."""
    typing: bool = False
    """Whether typed keys extend the words."""
    leaving: bool = False

    def same_view(self, other: ScreenPosition) -> bool:
        """Whether the same answers of an aggregator are shown."""
        return self._view == other._view

    @property
    def _view(self) -> tuple[object, ...]:
        return self.screen, self.job, self.sort, self.down, self.words


_STEPS = {
    "up": -1, "k": -1, "wheel up": -3, "page up": -10,
    "down": 1, "j": 1, "wheel down": 3, "page down": 10,
}  # fmt: skip
_MOST_WORDS = 200
"""Longest filter text, in case a key is held down."""
_SCREENS = {"h": Screen.JOBS, "escape": Screen.JOBS, "s": Screen.SERVERS, "?": Screen.HELP}
KEYS = (
    ("up, k / down, j", "choose a line"),
    ("page up, page down", "ten lines"),
    ("enter", "open the job"),
    ("<, >", "sort the jobs by another column"),
    ("r", "reverse the order"),
    ("/", "filter jobs by words in name, state, cause, owner; enter keeps the filter, escape clears it"),
    (
        "mouse",
        "click selects a line, opens the selected one, or sorts by a column; hold shift to select text",
    ),
    ("h, escape", "all jobs"),
    ("s", "serving engines"),
    ("?", "this list"),
    ("q", "leave"),
)


_RISING = frozenset({"", "name", "owner"})
"""Ascending orders; the others are descending."""


def press(
    place: ScreenPosition, key: str, lines: Sequence[str], orders: Sequence[str] = ()
) -> ScreenPosition:
    """The state after a key.

    `lines` are the names in the list, in the order shown; `orders` those of the shown columns.
    """
    if place.typing:
        return _typed(place, key)
    if key in {"q", "Q"}:
        return replace(place, leaving=True)
    if place.screen is Screen.JOBS and (moved := _in_jobs(place, key, lines, orders)) is not None:
        return moved
    if key in _SCREENS:
        return replace(place, screen=_SCREENS[key], row=0 if key == "s" else place.row)
    if key in _STEPS:
        return replace(place, row=min(max(place.row + _STEPS[key], 0), max(len(lines) - 1, 0)))
    return place


def _in_jobs(
    place: ScreenPosition, key: str, lines: Sequence[str], orders: Sequence[str]
) -> ScreenPosition | None:
    """The state after a key that only the list of jobs has."""
    if key == "escape" and place.words:
        return replace(place, words="", row=0)
    if key == "enter" and lines:
        return replace(place, screen=Screen.JOB, job=lines[min(place.row, len(lines) - 1)])
    if key == "/":
        return replace(place, typing=True)
    if key == "r":
        return replace(place, down=not place.down, row=0)
    if key in {"<", ">"} and orders:
        every = ["", *orders]
        at = every.index(place.sort) if place.sort in every else 0
        return sorted_by(place, every[(at + (1 if key == ">" else -1)) % len(every)])
    return None


def sorted_by(place: ScreenPosition, order: str) -> ScreenPosition:
    """Sort by this column; the same one again reverses."""
    down = not place.down if order == place.sort else order not in _RISING
    return replace(place, sort=order, down=down, row=0)


def _typed(place: ScreenPosition, key: str) -> ScreenPosition:
    if key == "escape":
        return replace(place, typing=False, words="", row=0)
    if key == "enter":
        return replace(place, typing=False)
    if key == "backspace":
        return replace(place, words=place.words[:-1], row=0)
    return replace(place, words=(place.words + key)[:_MOST_WORDS], row=0) if len(key) == 1 else place


def window(count: int, row: int, room: int) -> range:
    """Which of `count` lines are shown in `room` lines so that `row` is among them."""
    room = max(room, 1)
    first = min(max(0, row - room // 2), max(0, count - room))
    return range(first, min(count, first + room))

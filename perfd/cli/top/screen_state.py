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
    leaving: bool = False

    def same_view(self, other: ScreenPosition) -> bool:
        """Whether the same answers of an aggregator are shown."""
        return (self.screen, self.job) == (other.screen, other.job)


_STEPS = {"up": -1, "k": -1, "down": 1, "j": 1, "page up": -10, "page down": 10}
_SCREENS = {"h": Screen.JOBS, "escape": Screen.JOBS, "s": Screen.SERVERS, "?": Screen.HELP}
KEYS = (
    ("up, k / down, j", "choose a line"),
    ("page up, page down", "ten lines"),
    ("enter", "open the job"),
    ("h, escape", "all jobs"),
    ("s", "serving engines"),
    ("?", "this list"),
    ("q", "leave"),
)


def press(place: ScreenPosition, key: str, lines: Sequence[str]) -> ScreenPosition:
    """Where a key leads; `lines` are the names in the list, in the order that is shown."""
    if key in {"q", "Q"}:
        return replace(place, leaving=True)
    if key in _SCREENS:
        return replace(place, screen=_SCREENS[key], row=0 if key == "s" else place.row)
    if key in _STEPS:
        return replace(place, row=min(max(place.row + _STEPS[key], 0), max(len(lines) - 1, 0)))
    if key == "enter" and place.screen is Screen.JOBS and lines:
        return replace(place, screen=Screen.JOB, job=lines[min(place.row, len(lines) - 1)])
    return place


def window(count: int, row: int, room: int) -> range:
    """Which of `count` lines are shown in `room` lines so that `row` is among them."""
    first = min(max(0, row - room // 2), max(0, count - room))
    return range(first, min(count, first + max(room, 1)))

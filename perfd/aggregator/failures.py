"""The failure of one job, node or record stays its own: it is marked, counted and logged once."""

from __future__ import annotations

import logging
import threading
import traceback
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from enum import StrEnum
from pathlib import Path
from types import TracebackType

log = logging.getLogger(__name__)

_MOST_LOGGED = 1024
"""Failures that are remembered as logged, to log each once."""


class Part(StrEnum):
    """The work that failed: the label `part` of `perfd_failures_total`."""

    ANALYSIS = "analysis"
    FACTS = "facts"
    """Inputs of a job's series beside its analysis."""
    SERIES = "series"
    SUMMARY = "summary"
    TRACES = "traces"
    """Taking over what captures showed."""
    CAPTURE = "capture"
    """Decisions about captures."""
    HISTORY = "history"
    EXPORT = "export"
    OVERVIEW = "overview"
    """An entry of /api/v1/jobs."""
    FLEET = "fleet"
    """A row of /api/v1/fleet."""
    NODE = "node"
    """The series of a node."""
    NODES = "nodes"
    """The memory of nodes."""
    RULES = "rules"
    RECORD = "record"
    """A record of an agent was dropped because it could not be applied."""


class _Contained:
    """See `Failures.contained`. Rounds have one of each node: a generator's cost three times as much."""

    __slots__ = ("_failures", "_job", "_node", "_part")

    def __init__(self, failures: Failures, part: Part, job: str, node: str) -> None:
        self._failures, self._part, self._job, self._node = failures, part, job, node

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, _kind: type[BaseException] | None, error: BaseException | None, _at: TracebackType | None
    ) -> bool:
        if error is None:
            self._failures.went_well(self._part, self._job)
        elif isinstance(error, Exception):
            # Whatever it is, all other jobs go on.
            self._failures.note(self._part, error, job=self._job, node=self._node)
            return True
        return False


class Failures:
    """What fails, by job and part; any thread may call any method."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._failing: dict[tuple[str, Part], str] = {}
        self._logged: set[tuple[str, Part, str]] = set()
        self._counts: Counter[Part] = Counter()

    def contained(self, part: Part, *, job: str = "", node: str = "") -> AbstractContextManager[None]:
        """Run a part of the work; what it raises is noted and goes no further.

        A job is marked until the same part goes well, so each part has one place in the work.
        """
        return _Contained(self, part, job, node)

    def went_well(self, part: Part, job: str) -> None:
        """Take the mark of a part off a job."""
        if self._failing:
            with self._lock:
                self._failing.pop((job, part), None)

    def note(self, part: Part, error: Exception, *, job: str = "", node: str = "", record: str = "") -> None:
        """Count an error of a part, and log it with its traceback unless it is known."""
        sentence = _sentence(error)
        condition = (job or node, part, sentence)
        with self._lock:
            self._counts[part] += 1
            if job:
                self._failing[job, part] = sentence
            known = condition in self._logged
            if len(self._logged) >= _MOST_LOGGED:
                self._logged.clear()
            self._logged.add(condition)
        if not known:
            log.error(
                "Part of the work failed; the rest continues. This is logged once.",
                exc_info=error,
                extra={"part": part.value, **_named(job=job, node=node, record=record)},
            )

    def counts(self) -> Mapping[Part, int]:
        """How often each part failed since the start."""
        with self._lock:
            return dict(self._counts)

    def reason(self, job: str, part: Part) -> str | None:
        """Why a part of the work on a job failed when it was tried last; None when it did not."""
        with self._lock:
            return self._failing.get((job, part))

    def of_job(self, job: str) -> str | None:
        """What fails of a job, in a sentence; None when nothing does."""
        with self._lock:
            failing = {part: text for (name, part), text in self._failing.items() if name == job}
        return next((f"{part} failed: {failing[part]}" for part in Part if part in failing), None)

    def jobs(self) -> list[tuple[str, Part]]:
        """The jobs of which something fails, with the part that does."""
        with self._lock:
            return sorted(self._failing)

    def forget(self, jobs: Iterable[str]) -> None:
        """Forget the failures of jobs that are gone."""
        gone = set(jobs)
        with self._lock:
            self._failing = {key: text for key, text in self._failing.items() if key[0] not in gone}
            self._logged = {condition for condition in self._logged if condition[0] not in gone}


def _named(**names: str) -> Mapping[str, str]:
    return {what: name for what, name in names.items() if name}


def _sentence(error: Exception) -> str:
    """What kind of error it is and where: its own text may hold what the job did not want to be seen."""
    place = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__} in {Path(place.filename).name}, line {place.lineno}."

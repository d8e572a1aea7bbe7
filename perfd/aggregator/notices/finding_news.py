"""Decides which jobs' new findings are reported to their agents, so that they send batches more often."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from perfd.analysis.findings import Kind

_REPORTED_AGAIN_AFTER_S = 30.0
"""Half of the time for which agents send more often: a finding that comes and goes costs few messages."""
_NO_NEWS = frozenset({Kind.NONE, Kind.UNKNOWN, Kind.ANALYSIS_FAILED})


class FindingNews:
    """Remembers the findings of each job. Without a clock; one thread at a time."""

    def __init__(self) -> None:
        self._known: dict[str, frozenset[Kind]] = {}
        self._reported_s: dict[str, float] = {}

    def take(self, findings: Mapping[str, Collection[Kind]], now_s: float) -> list[str]:
        """The jobs that have a finding which they did not have the last time; `now_s` is monotonic.

        `findings` are those of all jobs. A job is named again after 30 s at the earliest.
        """
        reported = []
        for job, kinds in findings.items():
            new = frozenset(kinds) - _NO_NEWS
            if new - self._known.get(job, frozenset()):
                last_s = self._reported_s.get(job)
                if last_s is not None and now_s - last_s < _REPORTED_AGAIN_AFTER_S:
                    continue
                self._reported_s[job] = now_s
                reported.append(job)
            self._known[job] = new
        for gone in self._known.keys() - findings.keys():
            del self._known[gone]
            self._reported_s.pop(gone, None)
        return reported

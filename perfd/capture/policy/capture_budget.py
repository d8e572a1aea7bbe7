"""How often alerts may capture one job: a cooldown per rule, and a number of captures per hour. Pure."""

from __future__ import annotations

from collections import deque

from perfd.capture.expected_job_end import FOR_HANGS
from perfd.capture.policy.capture_record import Capture
from perfd.capture.policy.policy_events import AlertFired
from perfd.config import CaptureProfile

_HOUR_S = 3600.0
_MOST_STARTS = 1000
"""Times of starts that are remembered per job: more than any budget allows in an hour."""


class CaptureBudget:
    """Remembers the captures that began, for as long as they can delay others."""

    def __init__(self, longest_cooldown_s: float) -> None:
        self._longest_cooldown_s = longest_cooldown_s
        self._last_by_rule: dict[tuple[str, str, str], float] = {}
        """By job, rule and profile: one alert may ask for several."""
        self._starts: dict[tuple[str, bool], deque[float]] = {}
        """By job, and whether it hung: earlier captures must not delay the stacks of a hang."""

    def began(self, capture: Capture) -> None:
        """Count a capture that begins, by an alert or by hand."""
        at = capture.requested_unix_s
        self._starts.setdefault((capture.job, capture.tool in FOR_HANGS), deque(maxlen=_MOST_STARTS)).append(
            at
        )
        if capture.alert:
            rule = (capture.job, capture.alert, capture.profile)
            self._last_by_rule[rule] = max(at, self._last_by_rule.get(rule, at))

    def held_back(self, event: AlertFired, name: str, profile: CaptureProfile, now_unix_s: float) -> str:
        """Why an alert's capture must wait; otherwise empty."""
        job = event.job
        last = self._last_by_rule.get((job.job, event.alert.name, name))
        if last is not None and (ago_s := now_unix_s - last) < profile.cooldown_s:
            left_s = profile.cooldown_s - ago_s
            before = f"{event.alert.name} requested a capture of this {job.kind} {ago_s:.0f} s ago"
            return f"Cooldown: {before}; {left_s:.0f} s are left."
        recent = sum(
            now_unix_s - start < _HOUR_S
            for start in self._starts.get((job.job, profile.tool in FOR_HANGS), ())
        )
        if recent >= profile.max_per_hour:
            return (
                f"Budget: {recent} captures of this {job.kind} in the last hour; "
                f"the profile's max_per_hour is {profile.max_per_hour}."
            )
        return ""

    def forget(self, now_unix_s: float) -> None:
        """Forget captures that no longer delay others: an aggregator outlives many jobs."""
        for rule, at in list(self._last_by_rule.items()):
            if now_unix_s - at >= self._longest_cooldown_s:
                del self._last_by_rule[rule]
        for kind, starts in list(self._starts.items()):
            if now_unix_s - max(starts) >= _HOUR_S:
                del self._starts[kind]

    def __len__(self) -> int:
        """How many jobs, and rules of jobs, it remembers."""
        return len(self._last_by_rule) + len(self._starts)

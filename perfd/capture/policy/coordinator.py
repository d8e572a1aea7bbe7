"""The aggregator's side of captures: feeds the policy, queues its messages, keeps the history."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from perfd.analysis.data.job_data import Captured
from perfd.capture.policy.capture_json import state_name, to_json
from perfd.capture.policy.capture_policy import CapturePolicy
from perfd.capture.policy.capture_record import Capture, CaptureReport
from perfd.capture.policy.policy_events import (
    Action,
    AgentConnected,
    AgentGone,
    AlertFired,
    CancelRequested,
    Event,
    ManualRequest,
    Record,
    Restored,
    StatusReceived,
    Tick,
)
from perfd.capture.policy.rank_outcomes import with_upload, without_files
from perfd.capture.selection import JobView, check_selector
from perfd.config import CaptureProfile
from perfd.errors import CaptureError, ConfigError
from perfd.model import (
    Alert,
    CaptureCancel,
    CaptureFilesRemoved,
    CaptureFileUpload,
    CaptureRequest,
    CaptureState,
    CaptureStatus,
    CaptureTool,
    TraceShares,
)

CAPTURE_LABEL = "capture"
"""The label of an alert that names the capture profile to start."""


_PAUSE_S = 10.0
"""Minimum time between two automatic captures of a job: profilers need time to release it."""
_CLOCK_GRAIN_S = 0.002
"""Alertmanager's times are in milliseconds."""


class CaptureCoordinator:
    """Turns alerts, requests and statuses into messages for agents, and tracks the captures.

    Not thread-safe and without a clock: the caller holds its lock and passes the time. After each
    call, send what `drain` returns.
    """

    def __init__(
        self,
        profiles: Mapping[str, CaptureProfile],
        *,
        history: int = 1000,
    ) -> None:
        check_profiles(profiles)
        self._policy = CapturePolicy(profiles)
        self._outbox: deque[tuple[str, CaptureRequest | CaptureCancel]] = deque()
        self._captures: dict[str, Capture] = {}
        self._changed: dict[str, None] = {}
        self._by_alert: dict[tuple[str, str], list[str]] = {}
        self._history = history

    def on_alert(self, alert: Alert, job: JobView, now_unix_s: float) -> Capture | None:
        """An alert began to fire: its capture, or the record of why there is none.

        Without a `capture` label it does nothing and returns None.
        """
        if not alert.labels.get(CAPTURE_LABEL):
            return None
        return self._handle(AlertFired(alert=alert, job=job), now_unix_s)

    def of_firing(self, alert: Alert, job: str) -> Capture | None:
        """The last decision about a continuing alert of a job; None for a new one.

        It continues if it began no later than that decision, or than what was decided on: clocks differ,
        and of two servers that evaluate a rule the later one's alert may arrive first. Labels that a server
        adds do not make it another alert.
        """
        began_unix_s = alert.fired_at_unix_s or 0.0
        found = (
            capture
            for capture in reversed(self._decided(job, alert))
            if capture.labels.items() <= alert.labels.items()
            and began_unix_s
            <= max(capture.requested_unix_s, (capture.fired_at_unix_s or 0.0) + _CLOCK_GRAIN_S)
        )
        return next(found, None)

    def is_due(self, alert: Alert, job: str, now_unix_s: float) -> bool:
        """Whether the capture of an alert that still fires was put off, and nothing stands in its way now."""
        before = self.of_firing(alert, job)
        if before is None or not before.put_off:
            return False
        others = (
            capture
            for capture in self._captures.values()
            if capture.job == job and capture.state is not CaptureState.REFUSED
        )
        ends = (capture.ended_unix_s for capture in others)
        return all(end is not None and now_unix_s - end >= _PAUSE_S for end in ends)

    def started_by(self, alert: Alert) -> tuple[str, ...]:
        """The ids of the captures in the history that this firing of an alert asked for."""
        return tuple(
            capture.capture_id
            for capture in self._decided(alert.target, alert)
            if capture.fired_at_unix_s == alert.fired_at_unix_s
            and capture.labels.items() == alert.labels.items()
        )

    def on_request(self, request: ManualRequest, now_unix_s: float) -> Capture:
        """A person asks for a capture: what became of it at once. The same id again changes nothing.

        Raises `CaptureError` when the id or the choice of ranks is malformed.
        """
        if request.ranks is not None:
            check_selector(request.ranks)
        self._handle(request, now_unix_s)
        return self._captures[request.capture_id]

    def on_cancel(self, capture_id: str, reason: str, now_unix_s: float) -> Capture:
        """A person ends a capture; raises `CaptureError` when there is none of that id."""
        if capture_id not in self._captures:
            raise CaptureError(
                f"There is no capture {capture_id!r}; `perfd capture list` shows what there is."
            )
        self._handle(CancelRequested(capture_id=capture_id, reason=reason), now_unix_s)
        return self._captures[capture_id]

    def on_status(self, node: str, status: CaptureStatus, now_unix_s: float) -> None:
        """An agent said where a capture stands on its node."""
        self._handle(StatusReceived(node=node, status=status), now_unix_s)

    def on_agent_connected(self, node: str, now_unix_s: float) -> None:
        """A node's stream is open (again)."""
        self._handle(AgentConnected(node=node), now_unix_s)

    def on_agent_gone(self, node: str, now_unix_s: float) -> None:
        """A node's stream broke."""
        self._handle(AgentGone(node=node), now_unix_s)

    def restore(self, captures: Sequence[Capture], now_unix_s: float) -> None:
        """Take over the history of an earlier aggregator, and go on with what was open in it."""
        for capture in captures:
            self._keep(capture)
        self._handle(Restored(captures=captures), now_unix_s)

    def capture(self, capture_id: str) -> Capture | None:
        """The capture of that id; None when it is not known, or forgotten."""
        return self._captures.get(capture_id)

    def on_report(self, capture_id: str, report: CaptureReport) -> None:
        """The traces of a capture that is over were read."""
        if (capture := self._captures.get(capture_id)) is not None:
            self._carry_out(Record(capture=replace(capture, report=report)))

    def on_files_removed(self, gone: CaptureFilesRemoved) -> None:
        """An agent removed files of a capture, from its node or from the shared folder."""
        capture = self._captures.get(gone.capture_id)
        if capture is None or capture.state is None:
            return
        if (changed := without_files(capture, gone)) != capture:
            self._carry_out(Record(capture=changed))

    def on_file_upload(self, node: str, upload: CaptureFileUpload) -> None:
        """An agent uploaded a file of a capture, or could not yet."""
        capture = self._captures.get(upload.capture_id)
        if capture is None:
            return
        if capture.state is None:
            # Files of one rank may be stored while another one is still captured.
            for action in self._policy.uploaded(node, upload):
                self._carry_out(action)
        elif (changed := with_upload(capture, node, upload)) != capture:
            self._carry_out(Record(capture=changed))

    def tick(self, now_unix_s: float) -> None:
        """Time passed; call it about once per second."""
        self._handle(Tick(), now_unix_s)

    def drain(self) -> list[tuple[str, CaptureRequest | CaptureCancel]]:
        """Messages to send since the last call, each with its node."""
        messages = list(self._outbox)
        self._outbox.clear()
        return messages

    def changed(self) -> list[Capture]:
        """Captures that changed since the last call, to be stored."""
        captures = [
            self._captures[capture_id] for capture_id in self._changed if capture_id in self._captures
        ]
        self._changed.clear()
        return captures

    def remembered(self) -> list[Capture]:
        """The captures that are remembered, oldest first."""
        return list(self._captures.values())

    def captures(self) -> list[dict[str, Any]]:
        """The history, oldest first, as the entries of schema perfd.capture/1."""
        return [to_json(capture) for capture in self._captures.values()]

    def captured(self, job: str) -> Captured | None:
        """The shares of the job's newest capture that has them."""
        for capture in reversed(self._captures.values()):
            shares = capture.report.shares if capture.report else None
            if capture.job == job and not capture.server and shares is not None:
                return _captured(capture, shares)
        return None

    def outcomes(self) -> Mapping[tuple[str, str], int]:
        """How many ranks of the captures in the history are in each state, by (job, state)."""
        return Counter(
            (capture.job, state_name(who.state))
            for capture in self._captures.values()
            for who in capture.participants
        )

    def states(self) -> Mapping[tuple[str, str], int]:
        """How many of the captures in the history are in each state as a whole, by (job, state)."""
        return Counter(
            (capture.job, state_name(capture.state, whole=True)) for capture in self._captures.values()
        )

    def waiting_uploads(self, now_unix_s: float) -> Mapping[str, tuple[int, float]]:
        """How many files of each job are not in object storage yet, and how long the oldest is due.

        A file counts from the end of its capture; one that is removed from its node is not due any more.
        """
        found: dict[str, tuple[int, float]] = {}
        for capture in self._captures.values():
            if capture.ended_unix_s is None:
                continue
            files = sum(
                file.upload and not ((stored := who.stored.get(file.path)) and stored.url)
                for who in capture.participants
                for file in who.files_there
            )
            if files:
                number, longest_s = found.get(capture.job, (0, 0.0))
                age_s = max(0.0, now_unix_s - capture.ended_unix_s)
                found[capture.job] = (number + files, max(longest_s, age_s))
        return found

    def _handle(self, event: Event, now_unix_s: float) -> Capture | None:
        recorded = None
        for action in self._policy.handle(event, now_unix_s):
            self._carry_out(action)
            if isinstance(action, Record):
                recorded = action.capture
        return recorded

    def _carry_out(self, action: Action) -> None:
        if isinstance(action, Record):
            self._keep(action.capture)
            self._changed[action.capture.capture_id] = None
            self._forget_oldest()
        else:
            self._outbox.append((action.node, action.message))

    def _decided(self, job: str, alert: Alert) -> list[Capture]:
        """The decisions about alerts of that name, oldest first."""
        return [self._captures[capture_id] for capture_id in self._by_alert.get((job, alert.name), ())]

    def _keep(self, capture: Capture) -> None:
        if capture.alert and capture.capture_id not in self._captures:
            self._by_alert.setdefault((capture.job, capture.alert), []).append(capture.capture_id)
        self._captures[capture.capture_id] = capture

    def _forget_oldest(self) -> None:
        for capture_id in list(self._captures)[: max(0, len(self._captures) - self._history)]:
            if self._captures[capture_id].state is not None:
                self._drop(self._captures.pop(capture_id))

    def _drop(self, capture: Capture) -> None:
        of_alert = self._by_alert.get((capture.job, capture.alert), [])
        if capture.capture_id in of_alert:
            of_alert.remove(capture.capture_id)
            if not of_alert:
                del self._by_alert[capture.job, capture.alert]


def check_profiles(profiles: Mapping[str, CaptureProfile]) -> None:
    """Raise `ConfigError` with every profile whose tool or choice of ranks is wrong."""
    mistakes: list[str] = []
    tools = ", ".join(tool.value for tool in CaptureTool)
    for name, profile in profiles.items():
        if profile.tool is not None and profile.tool not in set(CaptureTool):
            mistakes.append(f"capture_profiles.{name}.tool: {profile.tool!r} is not one of {tools}.")
        try:
            check_selector(profile.ranks)
        except CaptureError as error:
            mistakes.append(f"capture_profiles.{name}.ranks: {error}")
        if profile.max_duration_s <= 0:
            mistakes.append(f"capture_profiles.{name}.max_duration_s: it must be positive.")
    if mistakes:
        raise ConfigError("\n".join(mistakes))


def _captured(capture: Capture, shares: TraceShares) -> Captured:
    started = [who.started_unix_ns / 1e9 for who in capture.participants if who.started_unix_ns]
    stopped = [who.stopped_unix_ns / 1e9 for who in capture.participants if who.stopped_unix_ns]
    start_unix_s = min(started, default=capture.start_unix_s)
    return Captured(
        capture_id=capture.capture_id,
        start_unix_s=start_unix_s,
        end_unix_s=max([*stopped, start_unix_s]),
        shares=shares,
    )

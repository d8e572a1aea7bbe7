"""When to capture, on which ranks, and how each capture ends: events in, actions out, no I/O.

The states of a rank: none (requested), armed, running; then exactly one of done, refused, late, lost, empty
and failed, which never changes again. docs/captures.md describes each in a sentence.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from perfd.capture.expected_job_end import FOR_HANGS, Pace, job_end, needed_s, too_late, window_s
from perfd.capture.policy.agent_presence import AgentPresence
from perfd.capture.policy.capture_budget import CaptureBudget
from perfd.capture.policy.capture_record import Capture, Participant
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
    SendCancel,
    SendRequest,
    StatusReceived,
    Tick,
)
from perfd.capture.policy.rank_outcomes import apply, end_open, open_nodes, overall, unanswered, with_upload
from perfd.capture.selection import JobView, by_hand, check_capture_id, select, slug
from perfd.config import CaptureProfile
from perfd.errors import CaptureError
from perfd.model import (
    CaptureCancel,
    CaptureFileUpload,
    CaptureRequest,
    CaptureState,
    CaptureStatus,
    CaptureTool,
)

PROFILE_SEPARATOR = "+"
"""Separates the profiles that one alert requests."""
MAX_DURATION_S = 300.0
"""Nsight Systems does not officially support longer captures."""
_REMEMBERED_CAPTURES = 10_000
"""In memory, the newest; history has the others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureTimeouts:
    """How long the policy waits before it calls a rank late or lost."""

    answer_s: float = 30.0
    """For the first answer of an agent that is connected; then the rank is late."""
    result_s: float = 240.0
    """For the result, after the longest time that the capture itself may take: import, export, sharing."""
    gone_s: float = 60.0
    """For a disconnected agent; then its ranks are lost."""
    lead_s: float = 3.0
    """The lead time of the common start of several nodes."""
    kineto_lead_s: float = 14.0
    """The same for Kineto: its processes poll every 5 s, read the answer within 1 s and then warm up."""


class CapturePolicy:
    """Decides on captures. Pass it every event with the wall time and carry out its actions, in order."""

    def __init__(
        self, profiles: Mapping[str, CaptureProfile], patience: CaptureTimeouts | None = None
    ) -> None:
        self._profiles = dict(profiles)
        self._patience = patience or CaptureTimeouts()
        self._open: dict[str, Capture] = {}
        self._cancelled: dict[str, str] = {}
        """Why, of open captures that a person ended."""
        self._known: dict[str, None] = {}
        longest_s = max((profile.cooldown_s for profile in profiles.values()), default=0.0)
        self._budget = CaptureBudget(longest_s)
        self._away = AgentPresence()
        self._resumed_unix_s = 0.0
        """When captures were restored: their agents get time to answer again."""

    def handle(self, event: Event, now_unix_s: float) -> list[Action]:  # noqa: PLR0911  (one per event)
        """The actions for an event."""
        match event:
            case AlertFired():
                return self._alert(event, now_unix_s)
            case ManualRequest():
                return self._manual(event, now_unix_s)
            case CancelRequested():
                return self._cancel(event)
            case StatusReceived():
                self._away.back(event.node)
                return self._status(event.node, event.status, now_unix_s)
            case AgentGone():
                self._away.gone(event.node, now_unix_s)
                return []
            case AgentConnected():
                self._away.back(event.node)
                return self._connected(event.node, now_unix_s)
            case Restored():
                return self._restore(event.captures, now_unix_s)
            case Tick():
                return self._tick(now_unix_s)

    def uploaded(self, node: str, upload: CaptureFileUpload) -> list[Action]:
        """The actions for a file of an open capture that was uploaded, or could not be yet."""
        capture = self._open.get(upload.capture_id)
        if capture is None or (changed := with_upload(capture, node, upload)) == capture:
            return []
        self._open[capture.capture_id] = changed
        return [Record(capture=changed)]

    def _alert(self, event: AlertFired, now: float) -> list[Action]:
        names = event.alert.labels.get("capture", "").split(PROFILE_SEPARATOR)
        return [action for name in names for action in self._of_profile(event, name.strip(), now)]

    def _of_profile(self, event: AlertFired, profile_name: str, now: float) -> list[Action]:
        profile = self._profiles.get(profile_name)
        capture = Capture(
            capture_id=self._new_id(event.alert.name, now),
            job=event.job.job,
            server=event.job.server,
            tool=_tool(profile, event.job),
            profile=profile_name,
            alert=event.alert.name,
            labels=dict(event.alert.labels),
            value=event.alert.value,
            summary=event.alert.annotations.get("summary", ""),
            fired_at_unix_s=event.alert.fired_at_unix_s,
            requested_unix_s=now,
            start_unix_s=now,
            object_folder=event.job.object_folder,
            ranks=_unlike_profile(profile, event.alert.labels) if profile else "",
            steps=profile.steps if profile else None,
            max_duration_s=min(profile.max_duration_s, MAX_DURATION_S) if profile else 0.0,
        )
        if profile is None:
            return self._refuse(capture, self._no_profile(profile_name), now)
        if reason := self._budget.held_back(event, profile_name, profile, now):
            return self._refuse(capture, reason, now)
        return self._begin(capture, event.job, profile.ranks, now)

    def _manual(self, event: ManualRequest, now: float) -> list[Action]:
        if event.capture_id in self._known:
            return []
        check_capture_id(event.capture_id)
        profile = self._profiles.get(event.profile)
        capture = Capture(
            capture_id=event.capture_id,
            job=event.job.job,
            server=event.job.server,
            tool=_tool(profile, event.job),
            profile=event.profile,
            asked_by=event.asked_by,
            requested_unix_s=now,
            start_unix_s=now,
            object_folder=event.job.object_folder,
            ranks=event.ranks or "",
            steps=event.steps if event.steps is not None else profile.steps if profile else None,
            max_duration_s=min(
                event.max_duration_s or (profile.max_duration_s if profile else 0.0), MAX_DURATION_S
            ),
        )
        if profile is None:
            return self._refuse(capture, self._no_profile(event.profile), now)
        return self._begin(capture, event.job, event.ranks or profile.ranks, now)

    def _begin(self, capture: Capture, view: JobView, ranks: str, now: float) -> list[Action]:
        running = next((other for other in self._open.values() if _in_the_way(other, capture)), None)
        if running is not None:
            reason = f"Capture {running.capture_id} of this {view.kind} is still running."
            if capture.alert:
                reason += " If the alert still fires when that has ended, it captures then."
            return self._refuse(replace(capture, put_off=bool(capture.alert)), reason, now)
        if capture.tool is None:
            return self._refuse(capture, _no_tool(capture), now)
        if reason := self._too_late(capture, capture.tool, view.pace, now):
            return self._refuse(capture, reason, now)
        try:
            selection = select(ranks, view, capture.labels)
        except CaptureError as error:
            return self._refuse(capture, str(error), now)
        asked = [
            Participant(node=node, rank=rank)
            for node, chosen in selection.by_node.items()
            for rank in (chosen or (None,))
        ]
        turned_away = [
            Participant(node="", rank=rank, state=CaptureState.REFUSED, reason=reason)
            for rank, reason in selection.refused.items()
        ]
        lead_s = self._lead_s(capture.tool) if len(selection.by_node) > 1 else 0.0
        capture = replace(
            capture,
            participants=(*asked, *turned_away),
            start_unix_s=now + lead_s,
            step_time_s=view.pace.step_time_s,
        )
        if not asked:
            return self._settle(capture, now)
        self._remember(capture)
        self._open[capture.capture_id] = capture
        self._budget.began(capture)
        return [Record(capture=capture), *self._requests(capture, selection.by_node)]

    def _lead_s(self, tool: CaptureTool | None) -> float:
        return self._patience.kineto_lead_s if tool is CaptureTool.KINETO else self._patience.lead_s

    def _too_late(self, capture: Capture, tool: CaptureTool, pace: Pace, now: float) -> str:
        """Why the capture does not fit before the job's end; the nodes check again, more exactly."""
        length_s = window_s(capture.steps, pace.step_time_s, capture.max_duration_s)
        needed = needed_s(tool, lead_s=self._lead_s(tool), window_s=length_s)
        return too_late(job_end(pace, now), tool, needed)

    def _requests(self, capture: Capture, nodes: Mapping[str, Sequence[int]]) -> list[SendRequest]:
        if capture.tool is None:
            return []
        together = capture.start_unix_s > capture.requested_unix_s
        return [
            SendRequest(
                node=node,
                message=CaptureRequest(
                    capture_id=capture.capture_id,
                    job=capture.job,
                    tool=capture.tool,
                    ranks=tuple(ranks),
                    steps=capture.steps,
                    max_duration_s=capture.max_duration_s,
                    start_unix_ns=round(capture.start_unix_s * 1e9) if together else None,
                    profile=capture.profile,
                    alert=capture.alert,
                    object_folder=capture.object_folder,
                    step_time_s=capture.step_time_s,
                ),
            )
            for node, ranks in nodes.items()
        ]

    def _cancel(self, event: CancelRequested) -> list[Action]:
        capture = self._open.get(event.capture_id)
        if capture is None:
            return []
        # A node that never answers is settled by its deadline; the others report that they stopped.
        self._cancelled[event.capture_id] = event.reason
        return [_stop(node, event.capture_id, event.reason) for node in open_nodes(capture)]

    def _status(self, node: str, status: CaptureStatus, now: float) -> list[Action]:
        capture = self._open.get(status.capture_id)
        mine = [who for who in capture.participants if who.node == node] if capture else []
        if capture is None or all(who.final for who in mine):
            # No longer wanted (a restart, a deadline): nothing may stay running.
            stop = _stop(node, status.capture_id, "The aggregator no longer waits for it.")
            return [] if status.state.final else [stop]
        updated = apply(capture.participants, node, status)
        if updated == tuple(capture.participants):
            return []
        capture = replace(capture, participants=updated)
        return [*self._settle(capture, now), *self._without_quorum(capture)]

    def _without_quorum(self, capture: Capture) -> list[Action]:
        """Stop the other ranks if fewer are left than the profile's quorum."""
        profile = self._profiles.get(capture.profile)
        unwilling = [
            who for who in capture.participants if who.state in (CaptureState.REFUSED, CaptureState.LATE)
        ]
        willing = len(capture.participants) - len(unwilling)
        needed = (profile.quorum_ratio if profile else 0.0) * len(capture.participants)
        if not unwilling or willing >= needed:
            return []
        reason = f"Only {willing} of {len(capture.participants)} ranks can be captured: {unwilling[0].reason}"
        return [_stop(node, capture.capture_id, reason) for node in open_nodes(capture)]

    def _connected(self, node: str, now: float) -> list[Action]:
        """Repeat a request that still may begin, or its cancel: the agent answers with its state."""
        actions: list[Action] = []
        for capture in self._open.values():
            if node not in open_nodes(capture):
                continue
            if (reason := self._cancelled.get(capture.capture_id)) is not None:
                actions.append(_stop(node, capture.capture_id, reason))
            elif now < self._due_unix_s(capture, node):
                mine = [who.rank for who in capture.participants if who.node == node]
                actions += self._requests(capture, {node: [rank for rank in mine if rank is not None]})
        return actions

    def _restore(self, captures: Sequence[Capture], now: float) -> list[Action]:
        """Go on with open captures: agents went on, too, and report again once they are connected."""
        self._resumed_unix_s = now
        for capture in captures:
            self._remember(capture)
            if capture.state is not CaptureState.REFUSED:
                self._budget.began(capture)
            if capture.state is None:
                self._open[capture.capture_id] = capture
                for node in open_nodes(capture):
                    self._away.gone(node, now)
        return []

    def _tick(self, now: float) -> list[Action]:
        self._budget.forget(now)
        self._away.forget(now, {node for capture in self._open.values() for node in open_nodes(capture)})
        actions: list[Action] = []
        for capture in list(self._open.values()):
            overdue = {
                node: verdict
                for node in open_nodes(capture)
                if (verdict := self._overdue(capture, node, now)) is not None
            }
            if overdue:
                actions += [_stop(node, capture.capture_id, verdict[1]) for node, verdict in overdue.items()]
                actions += self._settle(end_open(capture, overdue), now)
        return actions

    def _overdue(self, capture: Capture, node: str, now: float) -> tuple[CaptureState, str] | None:
        """The outcome of a node's open ranks when its time is up, otherwise None."""
        away_s = self._away.away_s(node, now)
        if away_s is not None and away_s >= self._patience.gone_s:
            return CaptureState.LOST, f"The agent of node {node} has been away for {away_s:.0f} s."
        if now < max(self._due_unix_s(capture, node), self._resumed_unix_s + self._patience.answer_s):
            return None
        waited_s = now - capture.start_unix_s
        if unanswered(capture, node):
            return CaptureState.LATE, f"The agent of node {node} did not answer within {waited_s:.0f} s."
        return CaptureState.LOST, f"The agent of node {node} sent no result within {waited_s:.0f} s."

    def _due_unix_s(self, capture: Capture, node: str) -> float:
        """When a node has to have answered, or then sent its result."""
        if unanswered(capture, node):
            return capture.start_unix_s + self._patience.answer_s
        return capture.start_unix_s + capture.max_duration_s + self._patience.result_s

    def _settle(self, capture: Capture, now: float) -> list[Action]:
        """Keep a changed capture; end it when every rank has its outcome."""
        if all(who.final for who in capture.participants):
            state, reason = overall(capture.participants)
            capture = replace(capture, state=state, reason=reason, ended_unix_s=now)
            self._open.pop(capture.capture_id, None)
            self._cancelled.pop(capture.capture_id, None)
        else:
            self._open[capture.capture_id] = capture
        self._remember(capture)
        return [Record(capture=capture)]

    def _refuse(self, capture: Capture, reason: str, now: float) -> list[Action]:
        self._remember(capture)
        return [Record(capture=replace(capture, state=CaptureState.REFUSED, reason=reason, ended_unix_s=now))]

    def _no_profile(self, name: str) -> str:
        known = ", ".join(sorted(self._profiles)) or "none"
        return f"No capture profile {name!r}; capture_profiles has: {known}."

    def _remember(self, capture: Capture) -> None:
        self._known[capture.capture_id] = None
        while len(self._known) > _REMEMBERED_CAPTURES:
            del self._known[next(iter(self._known))]

    def _new_id(self, alert: str, now: float) -> str:
        stamp = datetime.fromtimestamp(now, UTC).strftime("%Y%m%dT%H%M%S")
        base = f"{slug(alert)}-{stamp}"
        number = 1
        while (name := base if number == 1 else f"{base}-{number}") in self._known:
            number += 1
        return name


def _tool(profile: CaptureProfile | None, view: JobView) -> CaptureTool | None:
    """The tool for a job or server: the profile's, otherwise the one that suits it."""
    if profile is None:
        return None
    return view.tool if profile.tool is None else CaptureTool(profile.tool)


def _unlike_profile(profile: CaptureProfile, labels: Mapping[str, str]) -> str:
    """The ranks option that selects an alert's ranks by hand; empty if the profile does."""
    ranks = by_hand(profile.ranks, labels)
    return "" if ranks == profile.ranks else ranks


def _in_the_way(other: Capture, capture: Capture) -> bool:
    """Whether a running capture must end first. Stacks of a hang are taken in parallel with other tools."""
    if other.job != capture.job:
        return False
    return capture.tool not in FOR_HANGS or other.tool is capture.tool


def _no_tool(capture: Capture) -> str:
    return (
        f"The engine of {capture.job} is unknown: enable the agent's collectors `sglang` and `vllm` for "
        f"it, or set capture_profiles.{capture.profile}.tool."
    )


def _stop(node: str, capture_id: str, reason: str) -> SendCancel:
    return SendCancel(node=node, message=CaptureCancel(capture_id=capture_id, reason=reason))

"""The agent's side of captures: one at a time, plus the stacks of a hang, each with one outcome per rank."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeAlias

from perfd.capture.node.artifact_sharing import Sharing
from perfd.capture.node.capture_run import CaptureRun, recover
from perfd.capture.node.capture_storage import CaptureStore
from perfd.capture.node.capture_timing import Interruption, RunContext
from perfd.capture.node.capture_tool import Tool
from perfd.capture.node.job_guards import GuardSettings, JobProgress
from perfd.capture.node.retention import LOOK_EVERY_S
from perfd.capture.node.stop_conditions import StopReason
from perfd.capture.policy.capture_policy import MAX_DURATION_S
from perfd.capture.selection import check_capture_id
from perfd.clock import Clock
from perfd.errors import CaptureError
from perfd.model import (
    CaptureCancel,
    CaptureRequest,
    CaptureState,
    CaptureStatus,
    CaptureTool,
)

log = logging.getLogger(__name__)

_REMEMBERED_CAPTURES = 256
"""Newest captures whose states are sent again after a reconnection."""


_Lane: TypeAlias = CaptureTool | None
"""Lanes that run in parallel, each with one capture at a time and its own thread: one per tool for hangs,
which must not wait for a profiler that hangs with the job, and None for all others together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Accepted:
    """A lane's current capture."""

    request: CaptureRequest
    cancelled: str | None = None


class CaptureExecutor:
    """Carries out capture requests on this node.

    `handle` may be called from any thread and returns at once. `send_status` is called from that thread
    or the executor's own and must not block. `progress` returns a job's progress by its log.
    After `stop` no capture runs on this node.
    """

    def __init__(
        self,
        *,
        tools: Sequence[Tool],
        store: CaptureStore,
        clock: Clock,
        send_status: Callable[[CaptureStatus], None],
        progress: Callable[[str], JobProgress],
        guards: GuardSettings | None = None,
        sharing: Sharing | None = None,
        remove_old: Callable[[], None] | None = None,
        look_every_s: float = LOOK_EVERY_S,
    ) -> None:
        """`remove_old` is called from time to time, from the executor's thread and never during a capture."""
        self._tools: Mapping[CaptureTool, Tool] = {tool.kind: tool for tool in tools}
        self._lanes: Sequence[_Lane] = (None, *(tool.kind for tool in tools if tool.for_hangs))
        self._store = store
        self._clock = clock
        self._remove_old = remove_old
        self._look_every_s = look_every_s
        self._send_status = send_status
        self._sharing = sharing
        self._around: Mapping[_Lane, RunContext] = {
            lane: RunContext(
                store=store,
                clock=clock,
                send_status=self._report,
                progress=progress,
                guards=guards or GuardSettings(),
                interruption=partial(self._interruption, lane),
                wait=partial(self._wait, lane),
                sharing=sharing,
            )
            for lane in self._lanes
        }
        self._changed = threading.Condition(threading.RLock())
        self._accepted: dict[_Lane, _Accepted] = {}
        self._stopping = False
        self._statuses: dict[str, tuple[CaptureStatus, ...]] = {}
        self._threads = [
            threading.Thread(target=self._work, args=(lane,), name=_thread_name(lane), daemon=True)
            for lane in self._lanes
        ]

    def available_tools(self) -> tuple[CaptureTool, ...]:
        """The tools that this node has, for the agent's `Hello`."""
        return tuple(kind for kind, tool in self._tools.items() if tool.available())

    @property
    def running(self) -> bool:
        """Whether requests are taken."""
        return all(thread.is_alive() for thread in self._threads)

    def start(self) -> None:
        """End what an earlier agent left running, then take requests."""
        for record in self._store.unfinished():
            tool = self._tools.get(record.request.tool)
            self._report(recover(record, tool, self._store, self._clock.unix_ns()))
        for tool in self._tools.values():
            tool.open()
        if self._sharing is not None:
            self._sharing.start()
        for thread in self._threads:
            thread.start()

    def stop(self, timeout_s: float = 30.0) -> None:
        """Abort what runs and wait for it; may be called twice, and without `start`."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        deadline_s = time.monotonic() + timeout_s
        if self._sharing is not None:
            self._sharing.stop()
        for thread in self._threads:
            if thread.is_alive():
                thread.join(max(0.0, deadline_s - time.monotonic()))
        for tool in self._tools.values():
            tool.close()

    def handle(self, message: CaptureRequest | CaptureCancel) -> None:
        """Handle a message from the aggregator. A repeated request gets the same answer."""
        with self._changed:
            if isinstance(message, CaptureCancel):
                self._cancel(message)
            elif (earlier := self._earlier(message.capture_id)) is not None:
                for status in earlier:
                    self._send_status(status)
            elif reason := self._refusal(message):
                self._refuse(message, reason)
            else:
                self._statuses[message.capture_id] = ()
                self._accepted[self._lane(message)] = _Accepted(request=_capped(message))
                self._changed.notify_all()

    def _earlier(self, capture_id: str) -> Sequence[CaptureStatus] | None:
        """The answer of this or an earlier agent for an id; None if it is new."""
        if capture_id in self._statuses:
            return self._statuses[capture_id]
        try:
            record = self._store.load(capture_id)
        except CaptureError:
            return None  # Not an id; `_refusal` reports it.
        return record.statuses if record is not None else None

    def _refusal(self, request: CaptureRequest) -> str:
        try:
            check_capture_id(request.capture_id)
        except CaptureError as error:
            return str(error)
        if self._stopping:
            return "The agent is being stopped."
        if not self.running:
            return "The agent has only just started; try again."
        if request.tool not in self._tools:
            return f"This node has no capture tool {request.tool.value}; run `perfd doctor` on it."
        if (busy := self._accepted.get(self._lane(request))) is not None:
            return f"Busy: capture {busy.request.capture_id} is running on this node."
        return ""

    def _lane(self, request: CaptureRequest) -> _Lane:
        return request.tool if self._tools[request.tool].for_hangs else None

    def _refuse(self, request: CaptureRequest, reason: str) -> None:
        self._report(self._ended(request, CaptureState.REFUSED, reason))

    def _ended(self, request: CaptureRequest, state: CaptureState, reason: str) -> CaptureStatus:
        """The outcome of all requested ranks."""
        return CaptureStatus(
            capture_id=request.capture_id,
            state=state,
            time_unix_ns=self._clock.unix_ns(),
            reason=reason,
            ranks=tuple(request.ranks),
        )

    def _cancel(self, message: CaptureCancel) -> None:
        for lane, accepted in self._accepted.items():
            if accepted.request.capture_id == message.capture_id:
                self._accepted[lane] = replace(accepted, cancelled=message.reason or "no reason was given")
                self._changed.notify_all()

    def _report(self, status: CaptureStatus) -> None:
        """Send a status and remember it; a final one stays, the others only until the next."""
        with self._changed:
            kept = [one for one in self._statuses.pop(status.capture_id, ()) if one.state.final]
            self._statuses[status.capture_id] = (*kept, status)
            while len(self._statuses) > _REMEMBERED_CAPTURES:
                del self._statuses[next(iter(self._statuses))]
            self._send_status(status)

    def _work(self, lane: _Lane) -> None:
        while (accepted := self._next(lane)) is not None:
            request = accepted.request
            finals: Sequence[CaptureStatus] = ()
            try:
                finals = CaptureRun(request, self._tools[request.tool], self._around[lane]).run()
            except Exception as error:
                # An internal error in one capture must not end all later ones.
                log.exception("Internal error in a capture.", extra={"capture": request.capture_id})
                reason = f"An internal error of perfd ended the capture ({error!r}); see the agent's log."
                finals = [self._ended(request, CaptureState.FAILED, reason)]
            finally:
                with self._changed:
                    del self._accepted[lane]
                    for status in finals:
                        self._report(status)

    def _next(self, lane: _Lane) -> _Accepted | None:
        """The next capture to carry out; None when the agent stops."""
        idle_s = 0.0
        while not self._wanted(lane, idle_s):
            if lane is None:
                self._clean_up()
            idle_s = self._look_every_s
        with self._changed:
            accepted = self._accepted.get(lane)
            if self._stopping and accepted is not None:
                self._refuse(accepted.request, "The agent was stopped before the capture began.")
            return None if self._stopping else accepted

    def _wanted(self, lane: _Lane, within_s: float) -> bool:
        """True if there is work within `within_s`."""
        with self._changed:
            return self._changed.wait_for(lambda: self._stopping or lane in self._accepted, within_s)

    def _clean_up(self) -> None:
        if self._remove_old is None:
            return
        try:
            self._remove_old()
        except OSError as error:
            log.warning("Old captures cannot be removed.", extra={"reason": str(error)})

    def _interruption(self, lane: _Lane) -> Interruption | None:
        with self._changed:
            if self._stopping:
                reason = "The agent was stopped during the capture."
                return Interruption(why=StopReason.AGENT_STOPPED, reason=reason)
            accepted = self._accepted.get(lane)
            if accepted is not None and accepted.cancelled is not None:
                return Interruption(why=StopReason.CANCELLED, reason=f"Canceled: {accepted.cancelled}")
            return None

    def _wait(self, lane: _Lane, seconds: float) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._interruption(lane) is not None, timeout=seconds)


def _thread_name(lane: _Lane) -> str:
    return "perfd-capture" if lane is None else f"perfd-{lane.value}"


def _capped(request: CaptureRequest) -> CaptureRequest:
    """The request within what any node allows."""
    return replace(request, max_duration_s=min(max(request.max_duration_s, 0.0), MAX_DURATION_S))

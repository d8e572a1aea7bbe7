"""The agent's side of captures: one at a time, in a thread of its own, each with one end per rank."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from perfd.capture.node.artifact_sharing import Sharing
from perfd.capture.node.capture_run import CaptureRun, Interruption, RunContext, recover
from perfd.capture.node.capture_storage import CaptureStore
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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Accepted:
    """The capture that this node is busy with."""

    request: CaptureRequest
    cancelled: str | None = None


class CaptureExecutor:
    """Carries out capture requests on this node.

    `handle` may be called from any thread and returns at once. `send_status` is called from that thread
    or the executor's and must not block. `progress` tells how a job is doing by its log.
    After `stop` nothing of a capture runs on this node.
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
        """`remove_old` is called now and then, from the executor's thread and never during a capture."""
        self._tools: Mapping[CaptureTool, Tool] = {tool.kind: tool for tool in tools}
        self._store = store
        self._clock = clock
        self._remove_old = remove_old
        self._look_every_s = look_every_s
        self._send_status = send_status
        self._around = RunContext(
            store=store,
            clock=clock,
            send_status=self._tell,
            progress=progress,
            guards=guards or GuardSettings(),
            interruption=self._interruption,
            wait=self._wait,
            sharing=sharing,
        )
        self._changed = threading.Condition(threading.RLock())
        self._accepted: _Accepted | None = None
        self._stopping = False
        self._told: dict[str, tuple[CaptureStatus, ...]] = {}
        self._thread = threading.Thread(target=self._work, name="perfd-capture", daemon=True)

    def available_tools(self) -> tuple[CaptureTool, ...]:
        """The tools that this node has, for the agent's `Hello`."""
        return tuple(kind for kind, tool in self._tools.items() if tool.available())

    @property
    def running(self) -> bool:
        """Whether requests are taken."""
        return self._thread.is_alive()

    def start(self) -> None:
        """End what an earlier agent left running, then take requests."""
        for record in self._store.unfinished():
            tool = self._tools.get(record.request.tool)
            self._tell(recover(record, tool, self._store, self._clock.unix_ns()))
        for tool in self._tools.values():
            tool.open()
        self._thread.start()

    def stop(self, timeout_s: float = 30.0) -> None:
        """Abort what runs and wait for it; legal twice, and without `start`."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        if self.running:
            self._thread.join(timeout_s)
        for tool in self._tools.values():
            tool.close()

    def handle(self, message: CaptureRequest | CaptureCancel) -> None:
        """Take a message of the aggregator. A request that was seen before is answered as before."""
        with self._changed:
            if isinstance(message, CaptureCancel):
                self._cancel(message)
            elif (earlier := self._earlier(message.capture_id)) is not None:
                for status in earlier:
                    self._send_status(status)
            elif reason := self._refusal(message):
                self._refuse(message, reason)
            else:
                self._told[message.capture_id] = ()
                self._accepted = _Accepted(request=_capped(message))
                self._changed.notify_all()

    def _earlier(self, capture_id: str) -> Sequence[CaptureStatus] | None:
        """What this agent or one before it said about an id; None when it is new."""
        if capture_id in self._told:
            return self._told[capture_id]
        try:
            record = self._store.load(capture_id)
        except CaptureError:
            return None  # Not an id at all; `_refusal` says so.
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
        if self._accepted is not None:
            return f"Busy: capture {self._accepted.request.capture_id} is running on this node."
        if request.tool not in self._tools:
            return f"This node has no capture tool {request.tool.value}; run `perfd doctor` on it."
        return ""

    def _refuse(self, request: CaptureRequest, reason: str) -> None:
        self._tell(self._ended(request, CaptureState.REFUSED, reason))

    def _ended(self, request: CaptureRequest, state: CaptureState, reason: str) -> CaptureStatus:
        """The end of all that was asked for."""
        return CaptureStatus(
            capture_id=request.capture_id,
            state=state,
            time_unix_ns=self._clock.unix_ns(),
            reason=reason,
            ranks=tuple(request.ranks),
        )

    def _cancel(self, message: CaptureCancel) -> None:
        accepted = self._accepted
        if accepted is not None and accepted.request.capture_id == message.capture_id:
            self._accepted = replace(accepted, cancelled=message.reason or "no reason was given")
            self._changed.notify_all()

    def _tell(self, status: CaptureStatus) -> None:
        """Send a status and remember it; a final one stays, the others only until the next."""
        with self._changed:
            kept = [told for told in self._told.pop(status.capture_id, ()) if told.state.final]
            self._told[status.capture_id] = (*kept, status)
            while len(self._told) > _REMEMBERED_CAPTURES:
                del self._told[next(iter(self._told))]
            self._send_status(status)

    def _work(self) -> None:
        while (accepted := self._next()) is not None:
            request = accepted.request
            finals: Sequence[CaptureStatus] = ()
            try:
                finals = CaptureRun(request, self._tools[request.tool], self._around).run()
            except Exception as error:
                # A defect in one capture must not end all later ones.
                log.exception("A capture met a defect.", extra={"capture": request.capture_id})
                reason = f"A defect of perfd ended the capture ({error!r}); the agent's log says more."
                finals = [self._ended(request, CaptureState.FAILED, reason)]
            finally:
                with self._changed:
                    self._accepted = None
                    for status in finals:
                        self._tell(status)

    def _next(self) -> _Accepted | None:
        """The next capture to carry out; None when the agent stops."""
        idle_s = 0.0
        while not self._wanted(idle_s):
            self._clean_up()
            idle_s = self._look_every_s
        with self._changed:
            if self._stopping and self._accepted is not None:
                self._refuse(self._accepted.request, "The agent was stopped before the capture began.")
            return None if self._stopping else self._accepted

    def _wanted(self, within_s: float) -> bool:
        """Whether there is something else to do than to wait, after `within_s` at the latest."""
        with self._changed:
            return self._changed.wait_for(lambda: self._stopping or self._accepted is not None, within_s)

    def _clean_up(self) -> None:
        if self._remove_old is None:
            return
        try:
            self._remove_old()
        except OSError as error:
            log.warning("Old captures cannot be removed.", extra={"reason": str(error)})

    def _interruption(self) -> Interruption | None:
        with self._changed:
            if self._stopping:
                reason = "The agent was stopped during the capture."
                return Interruption(why=StopReason.AGENT_STOPPED, reason=reason)
            if self._accepted is not None and self._accepted.cancelled is not None:
                return Interruption(why=StopReason.CANCELLED, reason=f"Cancelled: {self._accepted.cancelled}")
            return None

    def _wait(self, seconds: float) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._interruption() is not None, timeout=seconds)


def _capped(request: CaptureRequest) -> CaptureRequest:
    """The request within what any node allows."""
    return replace(request, max_duration_s=min(max(request.max_duration_s, 0.0), MAX_DURATION_S))

"""Captures with Kineto: sends the ranks' processes a configuration, fetches the files, checks them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from perfd.capture.kineto import config_text
from perfd.capture.kineto.at_exit import waits_at_exit
from perfd.capture.kineto.client_registry import POLL_PERIOD_S, ConfigDelivery, KinetoClient
from perfd.capture.kineto.daemon_socket import KinetoEndpoint
from perfd.capture.kineto.process_matching import match, match_unnamed
from perfd.capture.kineto.trace_contents import CHECK_DECODER, CHECK_FUNCTION, TraceWork
from perfd.capture.kineto.trace_duration import Window, window
from perfd.capture.node import (
    Begun,
    CaptureOutcome,
    CapturePlan,
    CaptureTarget,
    ProcessTool,
    Readiness,
    TraceDirectory,
    environment_of,
    owner_of,
    plan_trace_directory,
    runs,
    started_pythons,
    trace_directory_of,
)
from perfd.capture.trace_check import check_trace
from perfd.clock import Clock
from perfd.errors import CaptureError
from perfd.model import CaptureState, CaptureTool, RankPlacement

_TRACE_NAME = "trace.json"
_PLACE_VARIABLE = "KINETO_ONDEMAND_TRACE_DIR"
_DEFAULT_PLACE = "/tmp"  # noqa: S108  (what libkineto allows by default; the folder below it is private)
_WRITTEN_AT_LATEST_S = 30.0
"""How long after its window a process is kept from ending without its trace: libkineto needs 2 s, more on a
busy node."""
_POLL_S = 0.2
"""How often the trace file is looked for: short beside any capture. Chosen."""
_MOST_MARGIN_S = 12.0
"""On a node so busy that libkineto's thread is even later, a capture would not represent the job."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KinetoOptions:
    """The operator's settings for captures with Kineto."""

    warmup_s: int = 2
    cpu_only: bool = False
    iteration_roundup: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class KinetoTiming:
    """Times that libkineto and the file system need."""

    tick_s: float = 1.0
    """The interval at which libkineto's own thread looks for a configuration."""
    margin_s: float = 1.5
    """For a late poll on a busy node, and for creating folders."""
    file_s: float = 90.0
    """After the end of the window: libkineto builds the whole trace in memory and then writes it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Traced:
    """One process and where its trace goes."""

    rank: int | None
    """None: the process is not known to be a rank."""
    pid: int
    client: KinetoClient
    box: TraceDirectory
    waits_at_exit: bool
    """Whether it waits for the window's end before it ends (`perfd_at_exit`)."""

    @property
    def file(self) -> str:
        """The trace's name: libkineto inserts the pid in the process's own namespace."""
        return f"trace_{self.own_pid}.json"

    @property
    def ranks(self) -> tuple[int, ...]:
        """The rank, if known."""
        return () if self.rank is None else (self.rank,)

    @property
    def name(self) -> str:
        """The file name of the trace's copy."""
        return f"{'process' if self.rank is None else f'rank{self.rank}'}_{self.pid}.pt.trace.json"

    @property
    def own_pid(self) -> int:
        """The pid in the process's own namespace."""
        return self.client.key[1]


_UNDELIVERED = frozenset({ConfigDelivery.WAITING, ConfigDelivery.MISSED})


class KinetoTool(ProcessTool):
    """A `perfd.capture.node.capture_tool.Tool` for PyTorch processes that poll this node's endpoint."""

    kind = CaptureTool.KINETO

    def __init__(
        self,
        endpoint: KinetoEndpoint | None,
        *,
        placements: Callable[[str], Sequence[RankPlacement]],
        clock: Clock,
        proc: Path = Path("/proc"),
        options: KinetoOptions | None = None,
        timing: KinetoTiming | None = None,
        run: str | None = None,
    ) -> None:
        """With `run`, processes of that `perfd run` are captured even if none is known to be a rank."""
        self._run_id = run
        self._endpoint = endpoint
        self._placements = placements
        self._clock = clock
        self._proc = proc
        self._options = options or KinetoOptions()
        self._timing = timing or KinetoTiming()
        self._traced: dict[str, _Traced] = {}
        self._note = ""
        self._margin_s = self._timing.margin_s
        # The time needed if a process has just polled.
        self.lead_s = POLL_PERIOD_S + self._after_poll_s

    def open(self) -> None:
        if self._endpoint is not None:
            self._endpoint.start()

    def close(self) -> None:
        if self._endpoint is not None:
            self._endpoint.stop()

    def available(self) -> bool:
        return self._endpoint is not None

    def ready(self, job: str, ranks: Sequence[int]) -> Readiness:
        if self._endpoint is None:
            return Readiness(
                reason="Captures with Kineto are off; set capture.kineto.enabled and start the job with "
                "KINETO_USE_DAEMON=1."
            )
        if self._endpoint.problem:
            return Readiness(reason=self._endpoint.problem)
        self._traced = {}
        clients, placements = self._endpoint.clients(), self._placements(job)
        if not (ranks or placements or self._run_id is None):
            started = started_pythons(self._proc, self._run_id)
            unnamed, reason = match_unnamed(started, clients, self._proc)
            targets, problems = self._targets([(None, pid, client) for pid, client in unnamed.items()])
            return Readiness(targets=targets, reason=reason or next(iter(problems.values()), ""))
        found = match(placements, clients, ranks, self._proc)
        targets, problems = self._targets(
            [
                (rank, client.host_pid or self._pid_of(job, rank), client)
                for rank, client in found.clients.items()
            ]
        )
        refused = {**found.refused, **{rank: why for rank, why in problems.items() if rank is not None}}
        reason = f"No process of job {job} is known on this node." if not refused else ""
        return Readiness(targets=targets, refused=refused, shared=found.shared, reason=reason)

    def _targets(
        self, chosen: Sequence[tuple[int | None, int, KinetoClient]]
    ) -> tuple[list[CaptureTarget], dict[int | None, str]]:
        """The targets of ranks, their pids and clients, and why some of these ranks have none."""
        targets: list[CaptureTarget] = []
        refused: dict[int | None, str] = {}
        for rank, pid, client in chosen:
            try:
                place = environment_of(self._proc, pid).get(_PLACE_VARIABLE) or _DEFAULT_PLACE
                box = plan_trace_directory(self._proc, pid, place, source=_PLACE_VARIABLE, profiler="kineto")
            except CaptureError as error:
                refused[rank] = str(error)
                continue
            self._traced[box.handle] = _Traced(
                rank=rank, pid=pid, client=client, box=box, waits_at_exit=waits_at_exit(self._proc, pid)
            )
            targets.append(CaptureTarget(handle=box.handle, processes={pid: rank}))
        return targets, refused

    def start(self, targets: Sequence[CaptureTarget], plan: CapturePlan) -> Begun:
        endpoint = self._answering()
        traced = [self._traced[target.handle] for target in targets]
        now_s = self._clock.monotonic_s()
        now_unix_ns = self._clock.unix_ns()
        start_unix_ns = plan.start_unix_ns or now_unix_ns + round(self._needed_s(traced) * 1e9)
        # The configuration has milliseconds.
        start_unix_ns = start_unix_ns // 1_000_000 * 1_000_000
        ahead_s = (start_unix_ns - now_unix_ns) / 1e9
        before_s = now_s + ahead_s - self._timing.tick_s - self._options.warmup_s
        chosen = window(
            plan,
            iteration_roundup=self._options.iteration_roundup,
            wait_at_exit=all(one.waits_at_exit for one in traced),
        )
        self._note = chosen.note
        until_unix_s = start_unix_ns / 1e9 + chosen.length_s + _WRITTEN_AT_LATEST_S
        try:
            for one in traced:
                owner = owner_of(self._proc, one.pid)
                if owner is not None:
                    one.box.create(*owner)
                    if one.waits_at_exit:
                        one.box.mark(one.own_pid, until_unix_s, *owner)
                order = self._order(one, plan.capture_id, start_unix_ns, chosen)
                endpoint.order(one.client.key, config_text.render(order), before_s=before_s)
        except CaptureError:
            self.abort([target.handle for target in targets])
            raise
        return Begun(start_unix_ns=start_unix_ns, length_s=chosen.length_s)

    def stop(self, targets: Sequence[CaptureTarget], plan: CapturePlan) -> Sequence[CaptureOutcome]:
        waiting = [self._traced[target.handle] for target in targets]
        deadline_s = self._clock.monotonic_s() + self._timing.file_s
        outcomes: list[CaptureOutcome] = []
        try:
            while waiting:
                late = self._clock.monotonic_s() >= deadline_s
                for one in list(waiting):
                    if (outcome := self._outcome(one, plan, late=late)) is not None:
                        outcomes.append(outcome)
                        waiting.remove(one)
                if waiting:
                    self._clock.sleep(_POLL_S)
        finally:
            self.abort([target.handle for target in targets])
        if any(one.state is CaptureState.LATE for one in outcomes):
            # A busy node takes longer than expected; the next capture allows for it.
            self._margin_s = min(_MOST_MARGIN_S, 2 * self._margin_s)
            self.lead_s = POLL_PERIOD_S + self._after_poll_s
        return outcomes

    def abort(self, handles: Sequence[str]) -> None:
        """Withdraw orders not fetched yet. The rest run to their end, and find no folder to write to.

        libkineto cannot be stopped: a process that has its order must still not end before the window is
        over, and therefore keeps its mark.
        """
        if self._endpoint is not None:
            for handle in handles:
                one = self._traced.get(handle)
                if one is not None and self._endpoint.delivery(one.client.key) in _UNDELIVERED:
                    one.box.unmark(one.own_pid)
            self._endpoint.withdraw_all()
        for box in map(trace_directory_of, handles):
            if box is not None:
                box.remove()

    def _answering(self) -> KinetoEndpoint:
        if self._endpoint is None:
            raise CaptureError("Captures with Kineto are off.")
        return self._endpoint

    def _pid_of(self, job: str, rank: int) -> int:
        return next((p.pid for p in self._placements(job) if p.rank == rank and p.pid is not None), 0)

    def _needed_s(self, traced: Sequence[_Traced]) -> float:
        """Until the last of them has polled, its thread has looked, and CUPTI is warm."""
        return max(one.client.next_poll_s for one in traced) + self._after_poll_s

    @property
    def _after_poll_s(self) -> float:
        return self._timing.tick_s + self._options.warmup_s + self._margin_s

    def _order(
        self, one: _Traced, capture_id: str, start_unix_ns: int, chosen: Window
    ) -> config_text.TraceOrder:
        return config_text.TraceOrder(
            output=one.box.inside / _TRACE_NAME,
            start_unix_ms=start_unix_ns // 1_000_000,
            duration_ms=round(chosen.length_s * 1e3),
            warmup_s=self._options.warmup_s,
            trace_id=capture_id,
            iterations=self._iterations(chosen.steps),
            iteration_roundup=self._options.iteration_roundup or 1,
        )

    def _iterations(self, steps: int | None) -> int | None:
        """How many calls of the optimizer to trace: whole steps are between two of them."""
        if steps is None or self._options.iteration_roundup is None:
            return None
        return steps + 1

    def _outcome(self, one: _Traced, plan: CapturePlan, *, late: bool) -> CaptureOutcome | None:
        """The outcome of one rank; None while its file may still come."""
        names = one.box.names()
        if one.file in names:
            one.box.unmark(one.own_pid)
            return self._collected(one, plan)
        delivery = self._answering().delivery(one.client.key)
        if delivery in _UNDELIVERED:
            reason = "The process did not poll for a configuration in time for the start."
            return CaptureOutcome(state=CaptureState.LATE, ranks=one.ranks, reason=reason)
        if not runs(self._proc, one.pid):
            reason = "The process ended before it wrote its trace."
            return CaptureOutcome(state=CaptureState.FAILED, ranks=one.ranks, reason=reason)
        if not late:
            return None
        if delivery is ConfigDelivery.DELIVERED and self._idle(one):
            reason = "libkineto got the request and did not start: too little time, or busy; see its log."
            return CaptureOutcome(state=CaptureState.LATE, ranks=one.ranks, reason=reason)
        reason = f"libkineto traced and wrote no file within {self._timing.file_s:.0f} s."
        return CaptureOutcome(state=CaptureState.LOST, ranks=one.ranks, reason=reason)

    def _idle(self, one: _Traced) -> bool:
        return any(c.idle for c in self._answering().clients() if c.key == one.client.key)

    def _collected(self, one: _Traced, plan: CapturePlan) -> CaptureOutcome:
        path = plan.directory / one.name
        try:
            one.box.fetch(one.file, path, max_bytes=plan.max_bytes)
            found = check_trace(CHECK_FUNCTION, path, plan, CHECK_DECODER)
        except CaptureError as error:
            return CaptureOutcome(
                state=CaptureState.FAILED,
                ranks=one.ranks,
                reason=str(error),
                files=[path] if path.is_file() else [],
            )
        work = found.work
        if work is TraceWork.GPU or (work is TraceWork.HOST and self._options.cpu_only):
            host = (
                ""
                if work is TraceWork.GPU
                else "The trace has host activity only: no GPU worked for the rank."
            )
            reason = " ".join(filter(None, (host, self._note)))
            return CaptureOutcome(
                state=CaptureState.DONE,
                ranks=one.ranks,
                reason=reason,
                files=[path],
                whole_steps=found.whole_steps,
            )
        reason = (
            "The trace is empty: the process did no work yet, or waited all the time."
            if work is TraceWork.NONE
            else "The trace has no GPU work of this rank (capture.kineto.cpu_only allows that)."
        )
        return CaptureOutcome(state=CaptureState.EMPTY, ranks=one.ranks, reason=reason, files=[path])

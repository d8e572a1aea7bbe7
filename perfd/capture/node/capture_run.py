"""One capture on one node, from its request to one final status per rank."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path

from perfd.capture.expected_job_end import is_planned
from perfd.capture.node.capture_storage import CaptureRecord, CaptureStore
from perfd.capture.node.capture_timing import POLL_S, CaptureTiming, RunContext
from perfd.capture.node.capture_tool import Begun, CaptureOutcome, CapturePlan, CaptureTarget, Readiness, Tool
from perfd.capture.node.job_guards import slowed
from perfd.capture.node.stop_conditions import CaptureProgress, StopReason, ending, note, shortfall
from perfd.errors import CaptureError
from perfd.model import CaptureFile, CaptureRequest, CaptureState, CaptureStatus

log = logging.getLogger(__name__)


class CaptureRun:
    """Carries out one request with one tool."""

    def __init__(self, request: CaptureRequest, tool: Tool, around: RunContext) -> None:
        self._request = request
        self._tool = tool
        self._around = around
        self._timing = CaptureTiming(request, tool, around)
        self._finals: list[CaptureStatus] = []
        self._shared: Mapping[int, int] = {}
        self._started_unix_ns: int | None = None
        self._stopped_unix_ns: int | None = None

    def run(self) -> Sequence[CaptureStatus]:
        """Carry out the request and return the final statuses, one outcome per rank.

        The tool never runs afterwards, whatever happened. Final statuses are not sent from here: the
        node must be free for the next capture when the aggregator receives them.
        """
        try:
            self._around.store.admit(self._request.capture_id)
            self._timing.check_job()
            readiness = self._tool.ready(self._request.job, self._request.ranks)
        except (CaptureError, OSError) as error:
            self._send_status(CaptureState.REFUSED, _sentence(error), self._request.ranks)
            return self._finals
        self._shared = readiness.shared
        if not readiness.targets:
            self._refuse_all(readiness)
            return self._finals
        ranks = self._asked(sorted({rank for target in readiness.targets for rank in target.ranks}))
        self._send_status(CaptureState.ARMED, "", ranks)
        for rank, reason in readiness.refused.items():
            self._send_status(CaptureState.REFUSED, reason, self._asked([rank]))
        quiet = False
        try:
            self._capture(readiness.targets, ranks)
            quiet = True
        except (CaptureError, OSError) as error:
            self._send_status(CaptureState.FAILED, _sentence(error), ranks)
        finally:
            # Also for unforeseen errors: the tool must not continue collecting.
            if not quiet:
                try:
                    self._abort(readiness.targets)
                except (CaptureError, OSError) as error:
                    log.warning("A capture could not be stopped.", extra={"reason": str(error)})
            # Without space for the record the next agent reports the capture as lost; this one still has it.
            with contextlib.suppress(OSError):
                self._close_record(readiness.targets)
        return self._finals

    def _capture(self, targets: Sequence[CaptureTarget], ranks: Sequence[int]) -> None:
        if unfit := self._timing.wait_for_start():
            self._send_status(*unfit, ranks)
            return
        store = self._around.store
        directory = store.create(self._record(targets, is_open=True))
        plan = self._plan(directory)
        begun = self._tool.start(targets, plan)
        if begun.start_unix_ns is not None and (
            interruption := self._timing.wait_for_window(begun.start_unix_ns)
        ):
            self._abort(targets)
            self._send_status(CaptureState.FAILED, interruption.reason, ranks)
            return
        self._started_unix_ns = begun.start_unix_ns or self._around.clock.unix_ns()
        self._send_status(CaptureState.RUNNING, "", ranks)
        why, progress = self._watch(targets, plan.max_bytes, begun)
        if not why.keeps_files:
            self._abort(targets)
            self._send_status(CaptureState.FAILED, self._why_deleted(why, progress), ranks)
            return
        outcomes = self._tool.stop(targets, plan)
        self._stopped_unix_ns = self._around.clock.unix_ns()
        size_bytes = store.size_bytes(self._request.capture_id)
        if size_bytes > plan.max_bytes:
            store.discard(self._request.capture_id)
            self._send_status(CaptureState.FAILED, note(self._request, StopReason.TOO_LARGE, progress), ranks)
            return
        self._report(outcomes, why, note(self._request, why, progress), ranks)

    def _plan(self, directory: Path) -> CapturePlan:
        job = self._around.progress(self._request.job)
        return CapturePlan(
            capture_id=self._request.capture_id,
            directory=directory,
            max_duration_s=self._request.max_duration_s,
            max_bytes=self._around.store.room_bytes(self._request),
            start_unix_ns=self._request.start_unix_ns,
            steps=self._request.steps,
            step_time_s=job.step_time_s or self._request.step_time_s,
            end_is_planned=is_planned(job.pace),
        )

    def _watch(
        self, targets: Sequence[CaptureTarget], room_bytes: int, begun: Begun
    ) -> tuple[StopReason, CaptureProgress]:
        clock = self._around.clock
        began_s = clock.monotonic_s()
        before = first = self._around.progress(self._request.job)
        while True:
            job = self._around.progress(self._request.job)
            if before.step is None:
                before = job
            if first.step is None or clock.monotonic_s() < began_s + begun.settle_s:
                first = job
            interruption = self._around.interruption()
            progress = CaptureProgress(
                elapsed_s=clock.monotonic_s() - began_s,
                steps=None if job.step is None or first.step is None else job.step - first.step,
                size_bytes=self._around.store.size_bytes(self._request.capture_id),
                room_bytes=room_bytes,
                disk_full=self._around.store.short_of_space(),
                alive=self._tool.alive(targets),
                length_s=begun.length_s,
                job_ends=self._timing.job_ends_now(job),
                slowed=slowed(before, job, self._around.guards),
                interruption=interruption.why if interruption else None,
            )
            why = ending(self._request, progress)
            if why is not None:
                return why, progress
            self._around.wait(POLL_S)

    def _report(
        self, outcomes: Sequence[CaptureOutcome], why: StopReason, remark: str, ranks: Sequence[int]
    ) -> None:
        """A final status for each outcome, and for ranks without one.

        Files that no outcome names are deleted, such as half a report on a full disk.
        """
        answered: set[int] = set()
        named = [file for outcome in outcomes for file in outcome.files]
        self._around.store.discard(self._request.capture_id, keep=named)
        for outcome in _one_unnamed(outcomes):
            state = outcome.state
            if why.spoils and state is CaptureState.DONE:
                state = CaptureState.FAILED
            files = self._around.store.seal(self._request.capture_id, outcome.files)
            mine = self._asked(outcome.ranks)
            if outcome.ranks and not mine:
                continue
            shared, unshared = self._share(mine, files)
            kept = "What was collected until then is kept." if why.spoils and files else ""
            short = shortfall(self._request.steps, outcome.whole_steps)
            reason = " ".join(filter(None, (outcome.reason, remark, short, kept, unshared)))
            self._send_status(state, reason, mine, shared, outcome.whole_steps)
            answered.update(mine or ranks)
        if silent := [rank for rank in ranks if rank not in answered]:
            self._send_status(CaptureState.EMPTY, "No report covers this rank.", silent)

    def _share(self, ranks: Sequence[int], files: Sequence[CaptureFile]) -> tuple[Sequence[CaptureFile], str]:
        if self._around.sharing is None or not files:
            return files, ""
        return self._around.sharing.share(
            self._request, ranks, files, lambda: self._around.interruption() is not None
        )

    def _refuse_all(self, readiness: Readiness) -> None:
        for reason in dict.fromkeys(readiness.refused.values()):
            mine = self._asked([rank for rank, why in readiness.refused.items() if why == reason])
            self._send_status(CaptureState.REFUSED, reason, mine)
        refused = self._asked(list(readiness.refused))
        others = [rank for rank in self._request.ranks if rank not in refused]
        if others or not readiness.refused:
            reason = readiness.reason or "None of its processes can be captured on this node."
            self._send_status(CaptureState.REFUSED, reason, others)

    def _why_deleted(self, why: StopReason, progress: CaptureProgress) -> str:
        interruption = self._around.interruption()
        return interruption.reason if interruption is not None else note(self._request, why, progress)

    def _abort(self, targets: Sequence[CaptureTarget]) -> None:
        try:
            self._tool.abort([target.handle for target in targets])
        finally:
            if self._around.store.load(self._request.capture_id) is not None:
                self._around.store.discard(self._request.capture_id)

    def _asked(self, ranks: Sequence[int]) -> list[int]:
        """These ranks and those in their processes, of the requested ones."""
        meant = {*ranks, *(rank for rank, other in self._shared.items() if other in ranks)}
        return sorted(rank for rank in meant if not self._request.ranks or rank in self._request.ranks)

    def _send_status(
        self,
        state: CaptureState,
        reason: str,
        ranks: Sequence[int],
        files: Sequence[CaptureFile] = (),
        whole_steps: int | None = None,
    ) -> None:
        status = CaptureStatus(
            capture_id=self._request.capture_id,
            state=state,
            time_unix_ns=self._around.clock.unix_ns(),
            reason=reason,
            ranks=tuple(ranks),
            files=tuple(files),
            started_unix_ns=self._started_unix_ns,
            stopped_unix_ns=self._stopped_unix_ns,
            whole_steps=whole_steps,
        )
        if state.final:
            self._finals.append(status)
        else:
            self._around.send_status(status)

    def _record(self, targets: Sequence[CaptureTarget], *, is_open: bool) -> CaptureRecord:
        return CaptureRecord(
            request=self._request,
            handles=tuple(target.handle for target in targets),
            open=is_open,
            statuses=tuple(self._finals),
        )

    def _close_record(self, targets: Sequence[CaptureTarget]) -> None:
        if self._around.store.load(self._request.capture_id) is not None:
            self._around.store.save(self._record(targets, is_open=False))


def _one_unnamed(outcomes: Sequence[CaptureOutcome]) -> Sequence[CaptureOutcome]:
    """The outcomes with those of processes without a known rank as one: a node has one status for all.

    A launcher among them did nothing that a trace could show: it is empty, and the others count.
    """
    named = [outcome for outcome in outcomes if outcome.ranks]
    unnamed = [outcome for outcome in outcomes if not outcome.ranks]
    if len(unnamed) < 2:
        return outcomes
    full = [outcome for outcome in unnamed if outcome.state is not CaptureState.EMPTY] or unnamed
    failed = [outcome.state for outcome in full if outcome.state is not CaptureState.DONE]
    steps = [outcome.whole_steps for outcome in full if outcome.whole_steps is not None]
    merged = CaptureOutcome(
        state=failed[0] if failed else CaptureState.DONE,
        ranks=(),
        reason=" ".join(dict.fromkeys(outcome.reason for outcome in full if outcome.reason)),
        files=[file for outcome in full for file in outcome.files],
        whole_steps=min(steps, default=None),
    )
    return [*named, merged]


def _sentence(error: CaptureError | OSError) -> str:
    """The error as a sentence."""
    if isinstance(error, CaptureError) or error.strerror is None:
        return str(error)
    return f"{error.filename or 'The disk'}: {error.strerror}."


def recover(record: CaptureRecord, tool: Tool | None, store: CaptureStore, now_unix_ns: int) -> CaptureStatus:
    """End a capture that an earlier agent left open; returns its final status."""
    reason = "The agent restarted during the capture."
    try:
        if tool is not None:
            tool.abort(record.handles)
        store.discard(record.request.capture_id)
    except (CaptureError, OSError) as error:
        reason = f"{reason} {error}"
    status = CaptureStatus(
        capture_id=record.request.capture_id,
        state=CaptureState.LOST,
        time_unix_ns=now_unix_ns,
        reason=reason,
        ranks=tuple(record.request.ranks),
    )
    store.save(CaptureRecord(request=record.request, open=False, statuses=(*record.statuses, status)))
    return status

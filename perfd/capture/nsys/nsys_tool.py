"""Captures with Nsight Systems: sessions that `nsys launch` opened around the job."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from perfd.capture.node import (
    NSYS_SESSION_VARIABLE,
    RUN_VARIABLE,
    Begun,
    CaptureOutcome,
    CapturePlan,
    CaptureTarget,
    ProcessScan,
    ProcessTool,
    Readiness,
    rank_of,
    runs,
    scan_nsys_processes,
)
from perfd.capture.nsys.nsys_cli import (
    Completed,
    NsysCli,
    Session,
    SessionState,
    importer_problem,
    parse_generated,
    session_prefix,
)
from perfd.capture.nsys.nsys_installation import Installation
from perfd.capture.nsys.report_contents import CHECK_DECODER, CHECK_FUNCTION
from perfd.capture.selection import slug
from perfd.capture.trace_check import check_trace
from perfd.clock import Clock
from perfd.errors import CaptureError
from perfd.model import CaptureState, CaptureTool, RankPlacement

_LATE_REPORT_S = 60.0
"""For a report that nsys still writes after its command has ended."""
_POLL_S = 0.2
"""How often a report that is being written is looked at. Chosen."""
_SETTLE_MARGIN = 1.5
"""The next capture allows for so many times the delay that was seen. Chosen."""
_MOST_SETTLE_S = 10.0
"""A job that waits when the collection starts has its first kernel late, regardless of the profiler."""
_NOT_LAUNCHED = "was not started under `nsys launch`; start the job with `perfd run`, or with nsys launch."
_NOT_THERE = (
    "is not among the ranks of the job's nsys sessions here: there is none, or it was not started in one."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class NsysOptions:
    """The operator's settings for captures with nsys."""

    export_sqlite: bool = True
    gpu_metrics: bool = False
    run: str | None = None
    """Only sessions with processes of this `perfd run`: another agent may monitor a job of the same name."""
    settle_s: float = 2.0
    """Time until CUPTI is active in every process. Each collection of a session covered less of its time than
    the one before, 1.1 s at first and 0.35 s after eight; the ninth, stopped after half a second, crashed the
    job (nsys 2025.3.1 on two H200s). The time is increased once a report shows that it took longer."""


class NsysTool(ProcessTool):
    """A `perfd.capture.node.capture_tool.Tool` for sessions of `nsys launch`."""

    kind = CaptureTool.NSYS

    def __init__(
        self,
        installation: Installation | None,
        *,
        placements: Callable[[str], Sequence[RankPlacement]],
        clock: Clock,
        proc: Path = Path("/proc"),
        options: NsysOptions | None = None,
    ) -> None:
        self._installation = installation
        self._placements = placements
        self._clock = clock
        self._proc = proc
        self._options = options or NsysOptions()
        self._settle_s = self._options.settle_s

    def available(self) -> bool:
        return self._installation is not None and self._installation.refusal is None

    def ready(self, job: str, ranks: Sequence[int]) -> Readiness:
        if self._installation is None:
            return Readiness(
                reason="nsys not found: install nsight-systems, set capture.nsys_path, or"
                " capture with Kineto (perfd run --kineto)."
            )
        if self._installation.refusal:
            return Readiness(reason=self._installation.refusal)
        if (importer := self._installation.importer) and (problem := importer_problem(importer)):
            return Readiness(reason=f"nsys would leave no report here: {problem}; run `perfd doctor`.")
        scan = scan_nsys_processes(self._proc)
        # A process of several ranks counts as its lowest one.
        placed = {
            p.pid: p.rank
            for p in sorted(self._placements(job), key=lambda one: -one.rank)
            if p.pid is not None
        }
        candidates = [
            (session, target)
            for session in self._cli.sessions()
            if (target := _target(session, scan, placed)).processes
            and _of_job(session, target, job, placed)
            and self._of_run(target, scan)
        ]
        return _readiness(candidates, frozenset(ranks), job, scan)

    def start(self, targets: Sequence[CaptureTarget], plan: CapturePlan) -> Begun:
        begun: list[str] = []
        try:
            for target in targets:
                begun.append(target.handle)
                output = plan.directory / slug(target.handle)
                self._cli.start(target.handle, output, gpu_metrics=self._options.gpu_metrics)
        except CaptureError:
            self.abort(begun)
            raise
        return Begun(settle_s=self._settle_s)

    def alive(self, targets: Sequence[CaptureTarget]) -> bool:
        processes = [pair for target in targets for pair in target.processes.items()]
        ranked = [pid for pid, rank in processes if rank is not None]
        return any(runs(self._proc, pid) for pid in ranked or [pid for pid, _ in processes])

    def stop(self, targets: Sequence[CaptureTarget], plan: CapturePlan) -> Sequence[CaptureOutcome]:
        stopped = self._cli.stop_all([target.handle for target in targets])
        return [
            outcome
            for target, done in zip(targets, stopped, strict=True)
            for outcome in self._collect(target, done, plan)
        ]

    def abort(self, handles: Sequence[str]) -> None:
        if self._installation is None:
            return
        for handle in handles:
            for file in self._cli.quiet(handle):
                file.unlink(missing_ok=True)

    def _of_run(self, target: CaptureTarget, scan: ProcessScan) -> bool:
        run = self._options.run
        return run is None or any(scan.environments[pid].get(RUN_VARIABLE) == run for pid in target.processes)

    @property
    def _cli(self) -> NsysCli:
        if self._installation is None:
            raise CaptureError("nsys not found on this node.")
        return NsysCli(self._installation.nsys)

    def _collect(self, target: CaptureTarget, done: Completed, plan: CapturePlan) -> Sequence[CaptureOutcome]:
        """Find and check the report of one session. Exit code 0 does not mean that there is one."""
        directory = plan.directory
        if done.code and not self._wait_until_gone(target.handle):
            self.abort([target.handle])
            reason = f"nsys stop failed: {done.complaint}"
            return [CaptureOutcome(state=CaptureState.FAILED, ranks=target.ranks, reason=reason)]
        report = _fetch(directory / f"{slug(target.handle)}.nsys-rep", done)
        if report is not None and report.stat().st_size:
            return self._verify(target, report, plan)
        raw = _fetch(directory / f"{slug(target.handle)}.qdstrm", done)
        if raw is None:
            reason = f"nsys left no report: {done.complaint}"
            return [CaptureOutcome(state=CaptureState.EMPTY, ranks=target.ranks, reason=reason)]
        reason = (
            f"nsys could not import what it collected and left only a .qdstrm: {done.complaint}; "
            "run `perfd doctor` on this node."
        )
        return [CaptureOutcome(state=CaptureState.FAILED, ranks=target.ranks, reason=reason, files=[raw])]

    def _wait_until_gone(self, handle: str) -> bool:
        """Whether the session ended with its application; then `nsys launch` has written the report."""
        deadline_s = self._clock.monotonic_s() + _LATE_REPORT_S
        while (session := self._cli.session(handle)) is not None:
            if session.state == SessionState.LAUNCHED or self._clock.monotonic_s() >= deadline_s:
                return False
            self._clock.sleep(_POLL_S)
        return True

    def _verify(self, target: CaptureTarget, report: Path, plan: CapturePlan) -> Sequence[CaptureOutcome]:
        """One outcome for the ranks whose kernels are in the report, one for those without any."""
        if not self._options.export_sqlite:
            return [CaptureOutcome(state=CaptureState.DONE, ranks=target.ranks, files=[report])]
        try:
            sqlite = self._cli.export(report)
            found = check_trace(CHECK_FUNCTION, sqlite, plan, CHECK_DECODER)
        except CaptureError as error:
            reason = f"The report exists but was not checked. {error}"
            return [
                CaptureOutcome(state=CaptureState.DONE, ranks=target.ranks, reason=reason, files=[report])
            ]
        files = [report, sqlite]
        if not sum(found.kernels.values()):
            reason = "The report has no GPU work."
            return [CaptureOutcome(state=CaptureState.EMPTY, ranks=target.ranks, reason=reason, files=files)]
        self._learn(found.recorded_from_s)
        kernels, steps = found.kernels, found.whole_steps
        # In a container the pids of the report may differ from ours; then ranks cannot be distinguished.
        if not target.ranks or not kernels.keys() & target.processes.keys():
            known = [whole for whole in steps.values() if whole is not None]
            fewest = min(known) if known and len(known) == len(steps) else None
            return [
                CaptureOutcome(state=CaptureState.DONE, ranks=target.ranks, files=files, whole_steps=fewest)
            ]
        return _by_rank(target, kernels, steps, files)

    def _learn(self, late_s: float) -> None:
        """Count steps from later on the next time, if CUPTI was active later than expected."""
        self._settle_s = max(self._settle_s, min(_MOST_SETTLE_S, late_s * _SETTLE_MARGIN))


def _by_rank(
    target: CaptureTarget, kernels: Mapping[int, int], steps: Mapping[int, int | None], files: Sequence[Path]
) -> list[CaptureOutcome]:
    """One outcome for ranks with kernels and equally many steps in the report, one for those without any."""
    busiest: dict[int, int] = {}
    for pid, rank in target.processes.items():
        if rank is not None and kernels.get(pid, 0) > kernels.get(busiest.get(rank, -1), 0):
            busiest[rank] = pid
    done: dict[int | None, list[int]] = {}
    for rank, pid in sorted(busiest.items()):
        done.setdefault(steps.get(pid), []).append(rank)
    outcomes = [
        CaptureOutcome(state=CaptureState.DONE, ranks=ranks, files=files, whole_steps=whole)
        for whole, ranks in done.items()
    ]
    if idle := [rank for rank in target.ranks if rank not in busiest]:
        reason = "The report has no GPU work of this rank."
        outcomes.append(CaptureOutcome(state=CaptureState.EMPTY, ranks=idle, reason=reason, files=files))
    return outcomes


def _target(session: Session, scan: ProcessScan, placed: Mapping[int, int]) -> CaptureTarget:
    return CaptureTarget(
        handle=session.name,
        processes={
            pid: placed.get(pid, rank_of(environment))
            for pid, environment in scan.environments.items()
            if environment[NSYS_SESSION_VARIABLE] == session.id
        },
    )


def _of_job(session: Session, target: CaptureTarget, job: str, placed: Mapping[int, int]) -> bool:
    """Only sessions of the watched job: it holds its ranks, or `perfd run` named it for that job."""
    return bool(target.processes.keys() & placed.keys()) or session.name.startswith(session_prefix(job))


def _readiness(
    candidates: Sequence[tuple[Session, CaptureTarget]], wanted: Collection[int], job: str, scan: ProcessScan
) -> Readiness:
    meant = [
        (session, target)
        for session, target in candidates
        if not wanted or not target.ranks or set(target.ranks) & set(wanted)
    ]
    targets = [target for session, target in meant if session.state == SessionState.LAUNCHED]
    covered = {rank for target in targets for rank in target.ranks}
    busy = {
        rank: f"The nsys session {session.name} is in state {session.state}: another capture uses it."
        for session, target in meant
        if session.state != SessionState.LAUNCHED
        for rank in target.ranks
        if rank not in covered
    }
    refused = dict(busy)
    if not any(not target.ranks for target in targets):
        refused |= {
            rank: f"Rank {rank} {_NOT_THERE if covered else _NOT_LAUNCHED}"
            for rank in wanted
            if rank not in covered and rank not in busy
        }
    if targets:
        return Readiness(targets=targets, refused=refused)
    if len(meant) > 0:
        session = meant[0][0]
        reason = f"The nsys session {session.name} is in state {session.state}; try again when it is free."
    elif scan.unreadable and not scan.environments:
        reason = (
            f"No process of job {job} is visible in an nsys session, and {scan.unreadable} processes cannot "
            "be read; run the agent as the job's user or as root."
        )
    else:
        reason = f"Job {job} {_NOT_LAUNCHED}"
    return Readiness(refused=refused, reason=reason)


def _fetch(expected: Path, done: Completed) -> Path | None:
    """The file at the requested path, moved there if nsys wrote it elsewhere; None if there is none.

    nsys does that, and returns 0, if the file exists or the folder is missing.
    """
    if expected.is_file():
        return expected
    elsewhere = [path for path in parse_generated(done.output) if path.suffix == expected.suffix]
    if not elsewhere or not elsewhere[0].is_file() or elsewhere[0].is_symlink():
        return None
    shutil.move(elsewhere[0], expected)
    return expected

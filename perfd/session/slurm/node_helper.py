"""The process on each node for `perfd capture --slurm`: an agent's captures, without the agent.

It finds the processes of one step of the job, and which of them are its ranks.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from queue import Empty, SimpleQueue

from perfd.agent.capture_setup import JobFacts, captures_directory, create_executor
from perfd.capture.node import CaptureExecutor, environment_of, lineage, pids
from perfd.capture.selection import slug
from perfd.clock import Clock
from perfd.collector import CollectorSpec, Settings
from perfd.collector_loading import load_collector
from perfd.errors import Unavailable
from perfd.model import CaptureRequest, CaptureStatus, RankPlacement
from perfd.session.slurm.helper_protocol import (
    CaptureOrder,
    FromNode,
    HelperSetup,
    NodeReady,
    Rank,
    RankStatus,
    decode,
)

Lines = Mapping[int, Sequence[int]]
"""Processes of a step by pid: each with its ancestors, itself first."""
_KINETO_S = 6.0
"""PyTorch polls its daemon every five seconds: only processes that have polled can be reached."""
Inbox = SimpleQueue[str | CaptureStatus | None]
"""Lines of the capture, statuses of the executor, and None when the capture is gone."""


def ranks_here(
    spec: CollectorSpec, *, job: str, job_id: str, step: int | None, node: str, proc: Path
) -> list[RankPlacement]:
    """The ranks of a step on this node, as the `ranks` collector (`spec`) reports them."""
    lines = step_members(proc, job_id=job_id, step=step, node=node)
    found: dict[int, RankPlacement] = {}
    for root in _parents_of_all(lines):
        for placement in _collect(spec, root, Settings(node=node, job=job, proc=proc)):
            found.setdefault(placement.rank, placement)
    pythons = {pid for pid in lines if _is_python(proc, pid)}
    return [
        placement
        if placement.pid is None
        else replace(placement, pid=interpreter(placement.pid, lines, pythons))
        for _, placement in sorted(found.items())
    ]


def step_members(proc: Path, *, job_id: str, step: int | None, node: str) -> Lines:
    """The processes of a step on this node whose environment we can read.

    One machine may be several nodes of SLURM, and a process may have been started without the node's name.
    """
    return {
        pid: lineage(proc, pid)
        for pid in pids(proc)
        if (environment := environment_of(proc, pid)).get("SLURM_JOB_ID") == job_id
        and environment.get("SLURM_STEP_ID") == (None if step is None else str(step))
        and environment.get("SLURMD_NODENAME", node) == node
    }


def interpreter(pid: int, lines: Lines, pythons: Collection[int]) -> int:
    """The process itself if it is a Python, otherwise the nearest below it: a shell may wrap a rank."""
    below = sorted(
        (line.index(pid), other) for other, line in lines.items() if pid in line and other in pythons
    )
    return below[0][1] if below else pid


def _is_python(proc: Path, pid: int) -> bool:
    try:
        return (proc / str(pid) / "exe").readlink().name.startswith("python")
    except OSError:
        return False


def _parents_of_all(lines: Lines) -> list[int]:
    """The daemons that started the step's tasks: parents that are not members themselves."""
    parents = dict.fromkeys(line[1] for line in lines.values() if len(line) > 1 and line[1] not in lines)
    # An orphan has init as parent, with all of the node's processes below it.
    return [parent for parent in parents if parent > 1]


def _collect(spec: CollectorSpec, root: int, settings: Settings) -> list[RankPlacement]:
    options = spec.options(root_pid=root)
    try:
        collector = spec.create(options, settings)
    except Unavailable:
        return []
    try:
        return [record for record in collector.collect() if isinstance(record, RankPlacement)]
    finally:
        collector.close()


def serve(
    lines: Iterable[str],
    send: Callable[[FromNode], None],
    *,
    node: str,
    search_path: str | None,
    clock: Clock,
    proc: Path = Path("/proc"),
) -> None:
    """Carry out one capture on this node; `lines` are those of standard input.

    Returns when each rank has its outcome, or when the lines end; then no profiler runs anymore.
    """
    inbox: Inbox = SimpleQueue()
    threading.Thread(target=_read, args=(lines, inbox), name="perfd-orders", daemon=True).start()
    setup = _next(inbox)
    if not isinstance(setup, HelperSetup):
        return
    found = ranks_here(
        load_collector("ranks"), job=setup.job, job_id=setup.job_id, step=setup.step, node=node, proc=proc
    )
    executor = _executor(setup, found, inbox, node=node, search_path=search_path, proc=proc, clock=clock)
    executor.start()
    try:
        if setup.capture.kineto.enabled:
            clock.sleep(_KINETO_S)
        send(_present(setup, found))
        order = _next(inbox)
        if isinstance(order, CaptureOrder) and (request := order.requests.get(node)) is not None:
            executor.handle(request)
            _pass_on(inbox, request, send)
    finally:
        executor.stop()
        _pass_on_rest(inbox, send)


def _read(lines: Iterable[str], inbox: Inbox) -> None:
    for line in lines:
        inbox.put(line)
    inbox.put(None)


def _next(inbox: Inbox) -> HelperSetup | CaptureOrder | None:
    """The next order; None when the capture is gone."""
    while isinstance(item := inbox.get(), CaptureStatus):
        pass  # From a capture that an earlier helper left in this folder.
    return None if item is None else decode(item)


def _executor(
    setup: HelperSetup,
    found: list[RankPlacement],
    inbox: Inbox,
    *,
    node: str,
    search_path: str | None,
    proc: Path,
    clock: Clock,
) -> CaptureExecutor:
    facts = JobFacts()
    facts(found)
    return create_executor(
        setup.capture,
        directory=captures_directory(setup.capture, Path(setup.directory) / slug(node)),
        search_path=search_path,
        proc=proc,
        facts=facts,
        clock=clock,
        send_status=inbox.put,
        report_removed=_report_to_none,
    )


def _report_to_none(_capture_id: str, _paths: Sequence[Path], _reason: str) -> None:
    """No aggregator takes part in these captures, so no history holds the files."""


def _present(setup: HelperSetup, found: list[RankPlacement]) -> NodeReady:
    where = f"step {setup.job_id}.{setup.step}" if setup.step is not None else "the batch script"
    return NodeReady(
        ranks=[Rank(rank=one.rank, gpu=one.gpu) for one in found],
        reason=""
        if found
        else f"No process of {where} here has a rank in an environment that this user can read; "
        "run this as the job's user, or name another step.",
    )


def _pass_on(inbox: Inbox, request: CaptureRequest, send: Callable[[FromNode], None]) -> None:
    """Report statuses until every rank has its outcome, or the capture is gone."""
    waiting = set(request.ranks)
    while waiting:
        item = inbox.get()
        if item is None:
            return
        if isinstance(item, CaptureStatus):
            send(RankStatus(status=item))
            if item.state.final:
                waiting -= set(item.ranks or waiting)


def _pass_on_rest(inbox: Inbox, send: Callable[[FromNode], None]) -> None:
    while True:
        try:
            item = inbox.get_nowait()
        except Empty:
            return
        if isinstance(item, CaptureStatus):
            send(RankStatus(status=item))

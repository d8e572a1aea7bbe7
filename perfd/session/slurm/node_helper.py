"""The process on each node for `perfd capture --slurm`: an agent's captures, without the agent."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from queue import Empty, SimpleQueue

from perfd.agent.capture_setup import JobFacts, captures_directory, create_executor
from perfd.capture.node import CaptureExecutor
from perfd.capture.selection import slug
from perfd.clock import Clock
from perfd.collector_loading import load_collector
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
from perfd.session.slurm.step_processes import ranks_here

_KINETO_S = 6.0
"""PyTorch polls its daemon every five seconds: only processes that have polled can be reached."""

Inbox = SimpleQueue[str | CaptureStatus | None]
"""Lines of the capture, statuses of the executor, and None when the capture is gone."""


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

"""Input of captures on a node: facts about its jobs, and the configured executor."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from perfd.capture.expected_job_end import exit_options, exit_unix_s, limit_unix_s, positive
from perfd.capture.jax import JaxOptions, JaxTool
from perfd.capture.kineto import KinetoEndpoint, KinetoOptions, KinetoTool
from perfd.capture.node import (
    CaptureExecutor,
    CaptureStore,
    FolderSharing,
    FolderWatch,
    GuardSettings,
    JobProgress,
    OnRemoved,
    SharedFolder,
    Sharing,
    Tool,
    keep_s,
)
from perfd.capture.nsys import NsysOptions, NsysTool, find_nsys
from perfd.capture.selection import slug
from perfd.capture.server import CaptureServer, ServerClient, ServerTool
from perfd.capture.stacks import FlightRecorderTool, PySpyTool, find_py_spy
from perfd.capture.upload import Uploader, UploadQueue
from perfd.clock import Clock
from perfd.config import AgentCaptureConfig, KinetoConfig, ServerConfig
from perfd.errors import ConfigError
from perfd.model import (
    CaptureFileUpload,
    CaptureStatus,
    CaptureTool,
    Event,
    EventKind,
    JobDescription,
    LogProgress,
    RankPlacement,
    Record,
    TrainingStep,
)
from perfd.net import ObjectStorage, client_context

_KEPT_STEPS = 64
"""Newest step times of a job: enough for a median that one slow step does not move."""


class JobFacts:
    """Progress of each job and placement of its ranks; a tap of the batcher. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._progress: dict[str, JobProgress] = {}
        self._placements: dict[str, dict[int, RankPlacement]] = {}

    def __call__(self, records: Sequence[Record]) -> None:
        with self._lock:
            for record in records:
                if isinstance(record, RankPlacement):
                    self._placements.setdefault(record.job, {})[record.rank] = record
                elif isinstance(record, TrainingStep | LogProgress | JobDescription | Event) and record.job:
                    known = self._progress.get(record.job, JobProgress())
                    self._progress[record.job] = _after(known, record)

    def progress(self, job: str) -> JobProgress:
        """A job's progress by its log, and the end that its ranks on this node report."""
        placements = self.placements(job)
        with self._lock:
            known = self._progress.get(job, JobProgress())
        return replace(
            known,
            exit_unix_s=exit_unix_s(known.exit_options, placements),
            limit_unix_s=limit_unix_s(placements),
        )

    def placements(self, job: str) -> Sequence[RankPlacement]:
        """The placement of the job's ranks on this node."""
        with self._lock:
            return list(self._placements.get(job, {}).values())


def _after(job: JobProgress, record: TrainingStep | LogProgress | JobDescription | Event) -> JobProgress:
    """A job's progress after one more record of it."""
    match record:
        case TrainingStep():
            timed = record.step_time_s is not None and not record.warmup
            newest = [(record.step, record.step_time_s or 0.0)] if timed else []
            return replace(
                job,
                step=record.step,
                stepped_unix_s=record.time_unix_ns / 1e9 if record.time_unix_ns is not None else None,
                step_times_s=tuple([*job.step_times_s, *newest][-_KEPT_STEPS:]),
                steps_per_line=record.steps_covered,
            )
        case LogProgress():
            return replace(job, last_line_unix_ns=record.last_line_unix_ns)
        case JobDescription():
            return replace(
                job,
                train_steps=record.train_steps or job.train_steps,
                exit_options=exit_options(record.arguments),
                checkpoint_interval_steps=positive(record.arguments.get("save_interval")),
                nccl_timeout_s=60.0 * (positive(record.arguments.get("distributed_timeout_minutes")) or 0)
                or None,
            )
        case Event(kind=EventKind.CHECKPOINT_STARTED):
            return replace(job, begun_checkpoint_step=record.step)
        case Event(kind=EventKind.CHECKPOINT):
            return replace(job, last_checkpoint_step=record.step)
    return job


def captures_directory(config: AgentCaptureConfig, default: Path) -> Path:
    """Where captures are written."""
    return Path(config.output_directory) if config.output_directory else default


def create_executor(
    config: AgentCaptureConfig,
    *,
    directory: Path,
    search_path: str | None,
    proc: Path,
    facts: JobFacts,
    clock: Clock,
    send_status: Callable[[CaptureStatus], None],
    report_removed: OnRemoved,
    sharing: Sharing | None = None,
    run: str | None = None,
) -> CaptureExecutor:
    """An executor that writes below `directory`. With `run`, only the job of that `perfd run` is captured."""
    store = CaptureStore(
        directory,
        max_bytes=config.max_bytes,
        min_free_bytes=config.min_free_bytes,
    )
    tools: list[Tool] = [
        NsysTool(
            find_nsys(config.nsys_path, search_path),
            placements=facts.placements,
            clock=clock,
            proc=proc,
            options=NsysOptions(export_sqlite=config.export_sqlite, gpu_metrics=config.gpu_metrics, run=run),
        ),
        _kineto(config.kineto, facts=facts, proc=proc, clock=clock, run=run),
        JaxTool(
            placements=facts.placements,
            clock=clock,
            proc=proc,
            options=JaxOptions(ports=config.jax.ports, cpu_only=config.jax.cpu_only),
            run=run,
        ),
        PySpyTool(
            find_py_spy(config.py_spy_path, search_path),
            placements=facts.placements,
            proc=proc,
            nonblocking=config.py_spy_nonblocking,
            run=run,
        ),
        FlightRecorderTool(placements=facts.placements, clock=clock, proc=proc),
        ServerTool(CaptureTool.SGLANG, [_server(one) for one in config.sglang], clock=clock),
        ServerTool(CaptureTool.VLLM, [_server(one) for one in config.vllm], clock=clock),
    ]
    watch = _watch(directory, config.retention_days, "capture.retention_days")

    def remove_old() -> None:
        now_s = clock.monotonic_s()
        if sharing is not None:
            sharing.remove_old(now_s)
        if watch is not None:
            store.remove_old(watch, report_removed, now_s, sharing.needs if sharing else lambda _: False)

    return CaptureExecutor(
        tools=tools,
        store=store,
        clock=clock,
        send_status=send_status,
        progress=facts.progress,
        guards=GuardSettings(
            max_slowdown_ratio=config.max_slowdown_ratio, nccl_timeout_s=config.nccl_timeout_s
        ),
        sharing=sharing,
        remove_old=remove_old,
    )


def sharing_of(
    config: AgentCaptureConfig,
    node: str,
    captures: Path,
    clock: Clock,
    *,
    report_removed: OnRemoved,
    report_upload: Callable[[CaptureFileUpload], None],
) -> Sharing | None:
    """The configured folder or object storage for the captures of this node, which are in `captures`."""
    if config.object_storage is not None:
        if config.share_directory is not None:
            raise ConfigError("capture: `share_directory` and `object_storage` are mutually exclusive.")
        return Uploader(
            ObjectStorage(config.object_storage, key="capture.object_storage"),
            UploadQueue(captures, node),
            clock=clock,
            report=report_upload,
            unredacted=config.share_unredacted,
        )
    if config.share_directory is None:
        return None
    directory = Path(config.share_directory)
    folder = SharedFolder(
        directory=directory,
        node=node,
        unredacted=config.share_unredacted,
        max_bytes=config.share_max_bytes,
        min_free_bytes=config.min_free_bytes,
        report_removed=report_removed,
    )
    watch = _watch(directory, config.share_retention_days, "capture.share_retention_days", slug(node))
    return FolderSharing(folder, timeout_s=config.share_timeout_s, watch=watch)


def _watch(directory: Path, days: float | None, option: str, who: str = "agent") -> FolderWatch | None:
    kept_s = keep_s(days, option)
    return None if kept_s is None else FolderWatch(directory, kept_s, who=who, option=option)


def _server(config: ServerConfig) -> CaptureServer:
    authorization = Path(config.authorization_file) if config.authorization_file else None
    client = ServerClient(
        config.address,
        authorization_file=authorization,
        tls=client_context(ca=config.ca, insecure=config.insecure),
    )
    return CaptureServer(client=client, trace_directory=Path(config.trace_directory))


def _kineto(
    config: KinetoConfig, *, facts: JobFacts, proc: Path, clock: Clock, run: str | None
) -> KinetoTool:
    directory = Path(config.socket_directory) if config.socket_directory else None
    return KinetoTool(
        KinetoEndpoint(directory, clock) if config.enabled else None,
        placements=facts.placements,
        clock=clock,
        proc=proc,
        options=KinetoOptions(
            warmup_s=config.warmup_s, cpu_only=config.cpu_only, iteration_roundup=config.iteration_roundup
        ),
        run=run,
    )

"""What captures need on a node: facts about its jobs, and the executor made of the configuration."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from perfd.capture.executor import CaptureExecutor
from perfd.capture.installation import find_nsys
from perfd.capture.nsys_tool import NsysOptions, NsysTool
from perfd.capture.storage import CaptureStore
from perfd.clock import Clock
from perfd.config import AgentCaptureConfig
from perfd.model import CaptureStatus, RankPlacement, Record, TrainingStep


class JobFacts:
    """How far each job is and where its ranks run; a tap of the batcher. Any thread may ask."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._steps: dict[str, int] = {}
        self._placements: dict[str, dict[int, RankPlacement]] = {}

    def __call__(self, records: Sequence[Record]) -> None:
        with self._lock:
            for record in records:
                if isinstance(record, TrainingStep):
                    self._steps[record.job] = record.step
                elif isinstance(record, RankPlacement):
                    self._placements.setdefault(record.job, {})[record.rank] = record

    def newest_step(self, job: str) -> int | None:
        """The last step that the job's log completed."""
        with self._lock:
            return self._steps.get(job)

    def placements(self, job: str) -> Sequence[RankPlacement]:
        """Where the job's ranks of this node run."""
        with self._lock:
            return list(self._placements.get(job, {}).values())


def create_executor(
    config: AgentCaptureConfig,
    *,
    directory: Path,
    search_path: str | None,
    proc: Path,
    facts: JobFacts,
    clock: Clock,
    send_status: Callable[[CaptureStatus], None],
) -> CaptureExecutor:
    """An executor that writes below `directory`, unless the configuration names another place."""
    store = CaptureStore(
        Path(config.output_directory) if config.output_directory else directory,
        max_bytes=config.max_bytes,
        min_free_bytes=config.min_free_bytes,
    )
    nsys = NsysTool(
        find_nsys(config.nsys_path, search_path),
        placements=facts.placements,
        clock=clock,
        proc=proc,
        options=NsysOptions(export_sqlite=config.export_sqlite, gpu_metrics=config.gpu_metrics),
    )
    return CaptureExecutor(
        tools=[nsys], store=store, clock=clock, send_status=send_status, newest_step=facts.newest_step
    )

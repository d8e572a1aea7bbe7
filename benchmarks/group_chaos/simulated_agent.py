"""An agent without collectors, whose spool and uplink are real."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from perfd.agent.collection.batcher import Batcher
from perfd.agent.spool import Spool
from perfd.agent.uplink.nats_uplink import NatsUplink
from perfd.capture.object_keys import file_key
from perfd.clock import SystemClock
from perfd.config import NatsUplinkConfig, UplinkConfig
from perfd.errors import PerfdError
from perfd.model import (
    CaptureCancel,
    CaptureFile,
    CaptureFileUpload,
    CaptureRequest,
    CaptureState,
    CaptureStatus,
    CaptureTool,
    JobOrigin,
    RankPlacement,
    Record,
    TrainingStep,
)
from perfd.net import ObjectStorage

PARTITIONS = 6


class SimulatedAgent:
    """A real spool and uplink of one node, without collectors, which answers captures as agents do."""

    def __init__(self, folder: Path, number: int, servers: Sequence[str], storage: ObjectStorage) -> None:
        self._folder = folder / f"agent{number}"
        self.node = f"n{number}"
        self._servers = list(servers)
        self._storage = storage
        self._jobs = 0
        self.job = ""
        self.sent: dict[str, int] = {}
        """The newest step of each job; its steps are 1, 2, and so on."""
        self._lock = threading.RLock()
        self._requests: queue.SimpleQueue[CaptureRequest | CaptureCancel | None] = queue.SimpleQueue()
        self._worker = threading.Thread(target=self._answer_all, daemon=True)
        self.begin_job()
        self.open()
        self._worker.start()

    def begin_job(self) -> None:
        with self._lock:
            self._jobs += 1
            self.job = f"job-{self.node}-{self._jobs}"
            self.sent[self.job] = 0

    def open(self) -> None:
        with self._lock:
            self.spool = Spool(self._folder, max_bytes=1 << 30)
            self._batcher = Batcher(self.spool)
            nats = NatsUplinkConfig(servers=self._servers, partitions=PARTITIONS)
            self.uplink = NatsUplink(
                UplinkConfig(nats=nats, backoff_initial_s=0.1, backoff_max_s=1.0),
                node=self.node,
                spool=self.spool,
                clock=SystemClock(),
                on_request=self._requests.put,
                capture_tools=(CaptureTool.KINETO,),
            )
            self.uplink.start()

    def close(self, flush_s: float = 0.0) -> None:
        with self._lock:
            self.uplink.stop(flush_s)
            self.spool.close()

    def restart(self) -> None:
        """Close and open it; what is sent meanwhile waits."""
        with self._lock:
            self.close()
            self.open()

    def send(self) -> None:
        """Make a batch with the next step of the job."""
        with self._lock:
            step = self.sent[self.job] = self.sent[self.job] + 1
            records: list[Record] = [TrainingStep(job=self.job, step=step, step_time_s=1.0)]
            if step == 1 or step % 20 == 0:
                records += [
                    JobOrigin(job=self.job, cluster="c"),
                    RankPlacement(job=self.job, rank=0, gpu=0, world_size=1),
                ]
            self._flush(records)

    def _flush(self, records: Sequence[Record]) -> None:
        self._batcher.add(records)
        self._batcher.flush(time.time_ns())
        self.uplink.notify()

    def _answer_all(self) -> None:
        answered = set[str]()
        while (request := self._requests.get()) is not None:
            if isinstance(request, CaptureCancel) or request.capture_id in answered:
                continue
            answered.add(request.capture_id)
            self._capture(request)

    def _capture(self, request: CaptureRequest) -> None:
        path = self._folder / request.capture_id / "rank0.json"
        self._say(request, CaptureState.RUNNING)
        time.sleep(0.3)
        path.parent.mkdir()
        path.write_text(request.capture_id)
        size = path.stat().st_size
        file = CaptureFile(path=str(path), size_bytes=size, upload=True)
        self._say(request, CaptureState.DONE, (file,))
        key = file_key(request.object_folder, request.capture_id, (0,), self.node, path.name)
        while True:
            try:
                self._storage.put(key, path)
                break
            except PerfdError:
                time.sleep(1.0)
        uploaded = CaptureFileUpload(
            capture_id=request.capture_id,
            path=str(path),
            url=self._storage.url_of(key),
            size_bytes=size,
            time_unix_ns=time.time_ns(),
        )
        with self._lock:
            self._flush([uploaded])

    def _say(self, request: CaptureRequest, state: CaptureState, files: Sequence[CaptureFile] = ()) -> None:
        with self._lock:
            self.uplink.send_status(
                CaptureStatus(
                    capture_id=request.capture_id,
                    state=state,
                    time_unix_ns=time.time_ns(),
                    ranks=(0,),
                    files=tuple(files),
                )
            )

"""A node's agent: collectors, spool, uplink and /metrics."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from prometheus_client import Metric

from perfd.agent.capture_setup import JobFacts, captures_directory, create_executor, sharing_of
from perfd.agent.collection import (
    Batcher,
    BatchPace,
    CollectorTask,
    LatestSamples,
    Runner,
    Tap,
    TaskState,
    in_other_intervals,
)
from perfd.agent.self_metrics import agent_values, collector_values
from perfd.agent.spool import Spool
from perfd.agent.uplink import GrpcUplink, NatsUplink, Uplink
from perfd.clock import SEND_AFTER, Clock, Schedule, SystemClock, common_start_s
from perfd.config import AgentConfig
from perfd.errors import PerfdError
from perfd.metrics.catalog import AGENT_PAGE_METRICS, families
from perfd.metrics.exposition import metrics_page, process_registry
from perfd.model import (
    BatchInterval,
    CaptureCancel,
    CaptureFilesRemoved,
    CaptureRequest,
    CaptureState,
    CaptureStatus,
    JobOrigin,
    NewFinding,
    NodeMessage,
    Record,
)
from perfd.net import AccessControl, HttpServer, Request, Response, ServerTls, text_response
from perfd.wire.service import MAX_MESSAGE_BYTES

log = logging.getLogger(__name__)

_COLLECTORS_TIMEOUT_S = 2.0
"""For collectors to end their reading; one that hangs is left behind. Chosen."""
_FIRST_READING_S = 12.0
"""For a collector that is starting when the agent ends, as the process that parses the log of a short job.
It took over 6 s on a busy machine. With the time to send it is below the 20 s of deploy/slurm/epilog.sh."""
_FLUSH_TIMEOUT_S = 3.0
"""To send the last batch and get its acknowledgment; without it the batch stays in the spool. Chosen."""
_ORIGIN_INTERVAL_S = 30.0
"""How often the agent repeats whose job it is, for aggregators that start later."""
_DESCRIBED = {metric.name: metric for metric in AGENT_PAGE_METRICS}


class Agent:
    """Runs `tasks` and streams their records, from `start` to `stop`.

    With `manual`, nothing is collected until the owner calls `step`, and `clock` may be a virtual one; only
    the uplink runs by itself. Opens the spool at once: raises `SpoolError`, or `ConfigError` if the uplink's
    configuration cannot work. Profilers are searched on `search_path`, as in `$PATH`; with `run`, nsys
    captures only the job of that `perfd run`. `origin` is the owner of the agent's own job.
    """

    def __init__(
        self,
        config: AgentConfig,
        *,
        node: str,
        spool_directory: Path,
        tasks: Sequence[CollectorTask],
        clock: Clock | None = None,
        taps: Sequence[Tap] = (),
        search_path: str | None = None,
        run: str | None = None,
        origin: JobOrigin | None = None,
        manual: bool = False,
    ) -> None:
        self._origin = origin
        self._access = AccessControl(
            config.listen, read_token=config.http_read_token_file, hosts=config.http_hosts
        )
        self._tls = ServerTls(config.http_tls, key="http_tls") if config.http_tls else None
        self._config = config
        self._tasks = tuple(tasks)
        self._clock = clock or SystemClock()
        self._manual = manual
        self._latest = LatestSamples(node, [column for task in tasks for column in task.columns])
        self._capturing: set[str] = set()
        """Captures that run here."""
        facts = JobFacts()
        self._spool = Spool(spool_directory, max_bytes=config.spool.max_bytes)
        captures = captures_directory(config.capture, spool_directory / "captures")
        try:
            self._captures = (
                create_executor(
                    config.capture,
                    directory=captures,
                    search_path=search_path,
                    proc=Path(config.proc),
                    facts=facts,
                    clock=self._clock,
                    send_status=self.send_status,
                    report_removed=self._report_removed,
                    sharing=sharing_of(
                        config.capture,
                        node,
                        captures,
                        self._clock,
                        report_removed=self._report_removed,
                        report_upload=self._store_now,
                    ),
                    run=run,
                )
                if config.capture.enabled
                else None
            )
            kind = GrpcUplink if config.uplink.nats is None else NatsUplink
            self._uplink: Uplink = kind(
                config.uplink,
                node=node,
                job=config.job,
                spool=self._spool,
                clock=self._clock,
                on_request=self._take_message,
                capture_tools=self._captures.available_tools() if self._captures else (),
            )
        except PerfdError:
            self._spool.close()
            raise
        bookmarks = self._spool.bookmarks()
        for task in self._tasks:
            task.bookmark.text = bookmarks.get(task.name)
        nats = config.uplink.nats
        self._pace = BatchPace(
            interval_s=config.uplink.batch_interval_s, quiet_interval_s=config.uplink.quiet_batch_interval_s
        )
        self._batcher = Batcher(
            self._spool,
            self._pace,
            taps=[self._latest, facts, *taps],
            max_message_bytes=MAX_MESSAGE_BYTES if nats is None else nats.max_message_bytes,
        )
        self._registry = process_registry(self._collect, lambda: self._latest.families(self._clock.unix_ns()))
        self._runner = Runner(self._tasks, self._batcher.add, self._clock)
        self._stopping = threading.Event()
        self._batch_thread = threading.Thread(target=self._batch_loop, name="perfd-batch", daemon=True)
        self._http: HttpServer | None = None

    @property
    def agent_id(self) -> str:
        """The identity of this agent's batches in the aggregator."""
        return self._spool.agent_id

    @property
    def http_address(self) -> str | None:
        """The address of /metrics, once started."""
        return self._http.address if self._http else None

    @property
    def collector_states(self) -> Sequence[TaskState]:
        """The state of each collector."""
        return [task.state for task in self._tasks]

    def start(self) -> None:
        """Start collecting and streaming.

        Raises `Unavailable` if a required source is missing, and `PerfdError` if the
        port of /metrics is taken; nothing runs then.
        """
        try:
            if self._config.listen is not None:
                routes = {"/metrics": self._serve_metrics, "/healthz": self._serve_health}
                self._http = HttpServer(self._config.listen, self._access.guard(routes), tls=self._tls)
            if self._manual:
                for task in self._tasks:
                    task.open()
            else:
                self._report_origin()
                self._runner.start()
                self._batch_thread.start()
            if self._captures is not None:
                self._captures.start()
        except PerfdError:
            self.stop()
            raise
        self._uplink.start()

    def stop(self, reason: str = "stopped", last: Sequence[Record] = ()) -> None:
        """Stop collecting, send the spool for a few seconds at most, and release everything.

        `last` follows the collectors' last records; then the aggregator gets a goodbye with `reason`.
        May be called twice, and without `start`.
        """
        if self._stopping.is_set():
            return
        self._stopping.set()
        self._batcher.wake()
        for name in self._runner.stop(_COLLECTORS_TIMEOUT_S, first_within_s=_FIRST_READING_S):
            log.warning("A collector hangs and is left behind.", extra={"collector": name})
        if self._batch_thread.is_alive():
            self._batch_thread.join()
        if self._captures is not None:
            self._captures.stop()
        self._queue(last)
        self.flush()
        self._uplink.stop(_FLUSH_TIMEOUT_S, reason)
        if self._http is not None:
            self._http.close()
        self._spool.close()

    def step(self) -> int | None:
        """Run the collectors that are due by the clock, and make one batch of their records.

        Returns the sequence of that batch, or None without records.
        """
        self._runner.run_due(self._clock.monotonic_s())
        return self.flush()

    def flush(self) -> int | None:
        """Make a batch of the queue; returns its sequence, or None if the queue is empty."""
        sequence = self._batcher.flush(self._clock.unix_ns())
        if sequence is not None:
            self._uplink.notify()
        return sequence

    def wait_acknowledged(self, sequence: int, timeout_s: float) -> bool:
        """True if the aggregator has everything up to `sequence` within `timeout_s`."""
        return self._uplink.wait_acknowledged(sequence, timeout_s)

    def send_status(self, status: CaptureStatus) -> None:
        """Send the state of a capture to the aggregator."""
        if status.state.final:
            self._capturing.discard(status.capture_id)
        else:
            self._capturing.add(status.capture_id)
        self._uplink.send_status(status)

    def _report_removed(self, capture_id: str, paths: Sequence[Path], reason: str) -> None:
        removed = CaptureFilesRemoved(
            capture_id=capture_id,
            paths=tuple(str(path) for path in paths),
            reason=reason,
            time_unix_ns=self._clock.unix_ns(),
        )
        self._store_now(removed)

    def _store_now(self, record: Record) -> None:
        """Put a record into the spool before what it is about is done."""
        if self._stopping.is_set():
            # A closed spool takes nothing, so the outcome would be lost.
            raise InterruptedError("The agent is being stopped.")
        self._batcher.store(record, self._clock.unix_ns())
        self._uplink.notify()

    def metrics(self) -> bytes:
        """The text of /metrics."""
        return metrics_page(self._registry, {}).body

    def _collect(self) -> list[Metric]:
        values = agent_values(
            spool=self._spool.stats(),
            uplink=self._uplink.state,
            last_sequence=self._spool.last_sequence,
            dropped_records=self._batcher.dropped_records,
        )
        values += collector_values(self.collector_states, self._clock.monotonic_s())
        return families(values, _DESCRIBED.__getitem__)

    def _batch_loop(self) -> None:
        # Real time paces this thread; only `step` follows a clock driven by the owner.
        interval_s = self._config.uplink.batch_interval_s
        start_s = common_start_s(interval_s, SystemClock()) + SEND_AFTER * interval_s
        schedule = Schedule(interval_s=interval_s, start_s=start_s)
        origin_due_s = time.monotonic() + _ORIGIN_INTERVAL_S
        flushed_unix_s = time.time()
        while not self._stopping.is_set():
            if time.monotonic() >= origin_due_s:
                self._report_origin()
                origin_due_s += _ORIGIN_INTERVAL_S
            now_s = time.monotonic()
            capturing = bool(self._capturing)
            batch_s = self._pace.interval_s(now_s, capturing=capturing)
            crowded = self._batcher.wait(min(schedule.next_s - now_s, batch_s))
            now_s = time.monotonic()
            if schedule.due(now_s):
                schedule.take(now_s)
            self._queue(self._runner.hanging(self._clock.monotonic_s()))
            # Whatever came meanwhile may have ended the quiet.
            batch_s = self._pace.interval_s(now_s, capturing=capturing)
            unix_s = time.time()
            if crowded or batch_s <= interval_s or in_other_intervals(flushed_unix_s, unix_s, batch_s):
                flushed_unix_s = unix_s
                self.flush()

    def _report_origin(self) -> None:
        if self._origin is not None:
            self._queue([self._origin])

    def _queue(self, records: Sequence[Record]) -> None:
        """Queue records of the agent itself."""
        if (refused := self._batcher.add(records)) is not None:
            log.warning("A record of the agent cannot be sent.", extra={"reason": str(refused)})

    def _serve_metrics(self, request: Request) -> Response:
        page = metrics_page(self._registry, request.headers)
        return Response(body=page.body, content_type=page.content_type)

    def _serve_health(self, _request: Request) -> Response:
        # Healthy without an aggregator, too: a restart of the agent would not bring it back.
        if self._manual or self._batch_thread.is_alive():
            return text_response("ok\n")
        return text_response("The thread that makes batches has ended.\n", 503)

    def _take_message(self, message: NodeMessage) -> None:
        if isinstance(message, NewFinding):
            self._pace.change(time.monotonic())
        elif isinstance(message, BatchInterval):
            self._pace.ask(message.quiet_s)
        elif self._captures is not None:
            self._captures.handle(message)
        else:
            self._refuse(message)

    def _refuse(self, request: CaptureRequest | CaptureCancel) -> None:
        if isinstance(request, CaptureRequest):
            self._uplink.send_status(
                CaptureStatus(
                    capture_id=request.capture_id,
                    state=CaptureState.REFUSED,
                    time_unix_ns=self._clock.unix_ns(),
                    reason="Captures are disabled on this node (capture.enabled).",
                )
            )

"""Agent and aggregator in one process, for a running job, and what a session adds to the collectors."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec

from perfd.agent.agent import Agent
from perfd.agent.collection import CollectorTask, create_tasks
from perfd.aggregator.aggregator import Aggregator
from perfd.aggregator.web_api import PAGE_FILE, save_run
from perfd.clock import Clock
from perfd.collector import CollectorSpec, Options, Settings
from perfd.config import (
    AgentConfig,
    AgentIdentityConfig,
    AggregatorConfig,
    CollectorConfig,
    HistoryConfig,
    UplinkConfig,
)
from perfd.errors import PerfdError
from perfd.model import CaptureTool, Event, EventKind, JobOutcome, Record, job_origin
from perfd.printed_output import PrintedOutput
from perfd.session.recording import BestEffortRecorder, tapped
from perfd.session.session_config import SessionConfig, load_session, with_rules
from perfd.session.supervisor import HOOK_COLLECTOR, MODEL_COLLECTOR, NCCL_COLLECTOR, MonitorSettings
from perfd.session.text import in_words, save_results

LOG_COLLECTOR = "training_log"
RANK_COLLECTOR = "ranks"
_INTERVAL_S = 0.1
"""For the log and the session's own events: the summary waits for one more round with them."""
_READ_LIMIT_S = 5.0
"""For the last lines of output at the end, and for their records."""


def with_options(
    config: AgentConfig,
    name: str,
    options: Mapping[str, object],
    *,
    interval_s: float | None = None,
    override: bool = False,
) -> AgentConfig:
    """The configuration with `options` for a collector, unless it sets them; with `override` in any case."""
    collector = config.collectors.get(name, CollectorConfig())
    merged = CollectorConfig(
        enabled=True if collector.enabled is None else collector.enabled,
        interval_s=collector.interval_s or interval_s,
        on_unavailable=collector.on_unavailable,
        options={**collector.options, **options} if override else {**options, **collector.options},
    )
    return msgspec.structs.replace(config, collectors={**config.collectors, name: merged})


class SessionEvents:
    """A collector of the session's own events; `report` may be called from any thread."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._waiting: list[Event] = []

    def report(self, event: Event) -> None:
        """Let the next `collect` return an event."""
        with self._changed:
            self._waiting.append(event)

    def wait_taken(self, timeout_s: float) -> bool:
        """True if `collect` returns every event within `timeout_s`."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._waiting, timeout_s)

    def spec(self, interval_s: float) -> CollectorSpec:
        """This collector, for an agent."""
        return CollectorSpec(name="session", options=Options, create=lambda *_: self, interval_s=interval_s)

    def collect(self) -> Sequence[Record]:
        with self._changed:
            events, self._waiting = self._waiting, []
            self._changed.notify_all()
        return events

    def close(self) -> None:
        pass


class LiveSession:
    """Monitors one job: `start`, `log` for its output, `finish` for the summary, `stop` in any case."""

    def __init__(
        self,
        settings: MonitorSettings,
        *,
        root_pid: int,
        started_unix_ns: int,
        scratch: Path,
        clock: Clock,
        say: Callable[[str], None],
    ) -> None:
        config = load_session(Path(settings.config) if settings.config else None)
        config = with_rules(config, settings.rules)
        self._settings = settings
        self._started_unix_ns = started_unix_ns
        self._clock = clock
        self._say = say
        self._node = config.agent.node or settings.node
        self._events = SessionEvents()
        self._printed = PrintedOutput()
        self._tape = self._open_tape()
        self._aggregator = self._start_aggregator(config)
        self._agent = self._make_agent(_agent_config(config, settings, root_pid), scratch)

    def start(self) -> None:
        """Start monitoring."""
        self._agent.start()
        self._report(EventKind.JOB_STARTED, "perfd run started the job.", self._started_unix_ns)
        if self._aggregator.http_address:
            self._say(f"perfd: live page at http://{self._aggregator.http_address}/")

    def log(self, lines: bytes, unix_ns: int) -> None:
        """Take whole lines that the job printed by `unix_ns`."""
        if lines:
            if self._tape is not None:
                self._tape.add_log(lines, unix_ns)
            self._printed.add(lines, unix_ns)

    def finish(self, code: int | None, dropped_bytes: int, ended_unix_ns: int) -> str:
        """Save the summary, and return it as text. `code` is None if the exit code is unknown.

        What the job printed last may be read seconds after its end, as this process starts beside it.
        """
        notes = _notes(code, dropped_bytes)
        if not self._printed.end(self._clock.unix_ns(), _READ_LIMIT_S):
            notes.append("The last lines of the log were not analyzed; see perfd.log.")
        if code is not None:
            message = _ended(code)
            outcome = JobOutcome.of_exit_code(code)
            self._report(EventKind.JOB_ENDED, message, ended_unix_ns, outcome, exit_code=code)
        self._events.wait_taken(_READ_LIMIT_S)
        # Ends the collectors' threads and waits until everything is acknowledged.
        self._agent.stop()
        self._aggregator.tick(self._clock.unix_ns() / 1e9)
        if self._tape is not None:
            self._tape.close()
        return self._save(notes)

    def stop(self) -> None:
        """Release everything; may be called twice, and after `finish`."""
        self._agent.stop()
        self._aggregator.stop()
        if self._tape is not None:
            self._tape.close()

    def _open_tape(self) -> BestEffortRecorder | None:
        if self._settings.recording is None:
            return None
        return BestEffortRecorder(
            Path(self._settings.recording),
            job=self._settings.job,
            node=self._node,
            clock=self._clock,
            start_unix_ns=self._started_unix_ns,
            say=self._say,
        )

    def _start_aggregator(self, config: SessionConfig) -> Aggregator:
        asked = self._settings.http
        wanted = msgspec.structs.replace(
            config.aggregator,
            listen="127.0.0.1:0",
            tls=None,
            history=self._history(config.aggregator.history),
            # With salloc, this node is none of those that Slurm lists.
            agent_identity=AgentIdentityConfig(any_job=[self._node]),
        )
        if asked is not None:
            wanted = msgspec.structs.replace(wanted, http_listen=asked)
        if self._settings.capture_tool is not None:
            wanted = msgspec.structs.replace(wanted, capture_tool=self._settings.capture_tool)
        try:
            return self._started(wanted)
        except PerfdError:
            if wanted.http_listen is None:
                raise
            # Another run on this machine has the usual port: use another one.
            aggregator = self._started(msgspec.structs.replace(wanted, http_listen="127.0.0.1:0"))
            self._say(f"perfd: {wanted.http_listen} is taken (by another run?): using another port.")
            return aggregator

    def _history(self, configured: HistoryConfig) -> HistoryConfig:
        """History beside the results, so that a kill of the monitor loses nothing that it took in."""
        if configured.path is not None or configured.url is not None or self._settings.results is None:
            return configured
        folder = Path(self._settings.results, "history")
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError:
            # Saving the results says why; the job is monitored all the same.
            return configured
        return msgspec.structs.replace(configured, path=str(folder / "history.sqlite"))

    def _started(self, config: AggregatorConfig) -> Aggregator:
        aggregator = Aggregator(config, self._clock)
        try:
            aggregator.start()
        except PerfdError:
            aggregator.stop()
            raise
        return aggregator

    def _make_agent(self, config: AgentConfig, scratch: Path) -> Agent:
        settings = Settings(
            node=self._node,
            job=self._settings.job,
            clock=self._clock,
            proc=Path(config.proc),
            sys=Path(config.sys),
            run=self._settings.run,
            printed=self._printed,
        )
        tasks = create_tasks(config, settings, adapt=lambda spec: tapped(spec, self._see))
        events = tapped(self._events.spec(_INTERVAL_S), self._see)
        return Agent(
            msgspec.structs.replace(config, uplink=UplinkConfig(address=self._aggregator.grpc_address)),
            node=self._node,
            spool_directory=scratch / "spool",
            tasks=[*tasks, CollectorTask(events, CollectorConfig(), settings)],
            clock=self._clock,
            search_path=self._settings.search_path,
            run=self._settings.run,
            origin=job_origin(self._settings.job, os.environ, owner=f"uid:{os.geteuid()}"),
        )

    def _see(self, collector: str, records: Sequence[Record]) -> None:
        """Process what a collector returned; called in each collector's thread."""
        if self._tape is None:
            return
        if collector == LOG_COLLECTOR:
            # The recording has the log itself, from which a later perfd may parse more.
            self._tape.describe(records)
        else:
            self._tape.add_records(records)

    def _report(
        self,
        kind: EventKind,
        message: str,
        unix_ns: int,
        outcome: JobOutcome | None = None,
        **values: float,
    ) -> None:
        job = self._settings.job
        self._events.report(
            Event(kind=kind, time_unix_ns=unix_ns, message=message, job=job, values=values, outcome=outcome)
        )

    def _save(self, notes: list[str]) -> str:
        summaries = self._aggregator.summary()
        text = in_words(summaries, self._aggregator.alerts(), notes, self._aggregator.captures())
        if self._settings.results is None:
            return text
        directory = Path(self._settings.results)
        try:
            save_results(directory, summaries, text)
            save_run(self._aggregator, directory / PAGE_FILE, self._clock.unix_ns() / 1e9)
        except OSError as error:
            return f"{text}\nperfd: not saved in {directory}: {error.strerror}."
        saved = f"perfd: summary saved in {directory}; perfd open, report and compare accept that folder."
        return f"{text}\n{saved}"


def _agent_config(config: SessionConfig, settings: MonitorSettings, root_pid: int) -> AgentConfig:
    """The operator's configuration with the session's own settings."""
    agent = with_options(config.agent, LOG_COLLECTOR, {"root_pid": root_pid}, interval_s=_INTERVAL_S)
    agent = with_options(agent, RANK_COLLECTOR, {"root_pid": root_pid})
    if settings.hook_socket is not None:
        agent = with_options(agent, HOOK_COLLECTOR, {"socket": settings.hook_socket})
    if settings.model:
        agent = with_options(agent, MODEL_COLLECTOR, settings.model, override=True)
    if settings.nccl_directory is not None:
        agent = with_options(agent, NCCL_COLLECTOR, {"directory": settings.nccl_directory})
    # The aggregator of this process serves the metrics of both.
    listen = None if agent.listen == AgentConfig().listen else agent.listen
    capture = agent.capture
    if settings.capture_tool == CaptureTool.KINETO:
        kineto = msgspec.structs.replace(capture.kineto, enabled=True)
        capture = msgspec.structs.replace(capture, kineto=kineto)
    if capture.output_directory is None and settings.results is not None:
        capture = msgspec.structs.replace(capture, output_directory=str(Path(settings.results) / "captures"))
    return msgspec.structs.replace(agent, listen=listen, capture=capture)


def _ended(code: int) -> str:
    """A sentence; 128 + n means that signal n ended the command, unless it chose that code itself."""
    try:
        name = f", as after {signal.Signals(code - 128).name}"
    except ValueError:
        name = ""
    return f"The job ended with exit code {code}{name}."


def _notes(code: int | None, dropped_bytes: int) -> list[str]:
    notes = []
    if code is None:
        notes.append("perfd run was killed; this summary covers the time before.")
    elif code:
        notes.append(_ended(code))
    if dropped_bytes:
        notes.append(f"{dropped_bytes} bytes of output came too fast and were not analyzed.")
    return notes

"""`perfd run`: a command, and a monitor that can neither stop nor slow it.

This process stays small: it starts the command, passes output and signals through,
and copies the output to the monitor, a separate process with agent and aggregator
(`perfd.session.monitor`). If the monitor fails, the command continues.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from types import FrameType

from perfd.clock import SystemClock
from perfd.errors import PerfdError
from perfd.session.channel import FrameKind, MonitorChannel
from perfd.session.job import WATCHED, ChildProcess, JobStream, OutputRelay, open_outputs

SUMMARY_LIMIT_S = 30.0
"""The monitor's time for the summary after the job's end."""

MONITOR = (sys.executable, "-P", "-m", "perfd.session.monitor")
"""The monitor's command; `-P`, because the job's working directory must not shadow our modules."""

_STDOUT, _STDERR = 1, 2
"""Our own: what the job prints is passed on to them."""
_THREADS = 3
"""One for each output of the job, and one for the monitor."""
_NO_MONITOR = "perfd: the monitor failed, so there is no summary; the job was not affected. See {log}."
_LATE_MONITOR = "perfd: no summary: the monitor did not end within {limit:g} s after the job. See {log}."
HOOK_COLLECTOR = "hook"
MODEL_COLLECTOR = "model_config"
NCCL_COLLECTOR = "nccl"


@dataclass(frozen=True, slots=True, kw_only=True)
class MonitorSettings:
    """The monitor's settings, sent before the job starts; paths are absolute."""

    job: str
    command: Sequence[str]
    node: str = ""
    """This node's name, unless the configuration has one."""
    search_path: str | None = None
    """The search path for tools."""
    config: str | None = None
    rules: Sequence[str] = ()
    """Rules files from the command line, in addition to those of the configuration."""
    http: str | None = None
    """The address from the command line; None for the configured one."""
    results: str | None = None
    recording: str | None = None
    hook_socket: str | None = None
    """The socket of `perfd.hook` in this job's processes; None for its default."""
    nccl_directory: str | None = None
    """The directory of the NCCL plugin's rings in this job's processes; None for its default."""
    run: str | None = None
    """Distinguishes this job's processes from those of other runs on the node; None for all."""
    capture_tool: str | None = None
    """What captures the job where a profile names no tool; None for the configured one."""
    model: Mapping[str, str | float] = field(default_factory=dict)
    """Options of the collector `model_config`, from the command line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SupervisorOptions:
    """One run of a command."""

    command: Sequence[str]
    """What is started: the job's command, maybe with a profiler's launcher in front."""
    launcher: bool = False
    """Whether there is one: it forwards only some signals."""
    settings: MonitorSettings
    environment: Mapping[str, str] | None = None
    """The command's environment; None for ours."""
    monitor: Sequence[str] = MONITOR


def run(options: SupervisorOptions, *, say: Callable[[str], None]) -> int:
    """Run the command and return its exit code (128 + n if signal n ended it).

    Must be called in the main thread. `say` prints a sentence from perfd. Raises `CommandError` if the
    command cannot be started, and `PerfdError` if this process could not pass on its output.
    """
    _require_threads()
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, WATCHED)
    try:
        session = _Session(options, say=say, mask=mask)
        code = session.run_job()
        # Signals sent to the job while it ended are not meant for its summary.
        while signal.sigtimedwait(WATCHED, 0) is not None:
            pass
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    with _interruptible():
        session.finish(code)
    return code


def _require_threads() -> None:
    """Raise `PerfdError` while nothing runs yet; the threads end before the command is started."""
    enough = threading.Event()
    started: list[threading.Thread] = []
    try:
        for _ in range(_THREADS):
            thread = threading.Thread(target=enough.wait)
            thread.start()
            started.append(thread)
    except RuntimeError as error:
        raise PerfdError(
            "The command was not started: this shell's limits do not allow the threads that forward its "
            "output. Raise ulimit -v or ulimit -u."
        ) from error
    finally:
        enough.set()
        for thread in started:
            thread.join()


class _Session:
    def __init__(
        self, options: SupervisorOptions, *, say: Callable[[str], None], mask: Collection[int]
    ) -> None:
        self._say = say
        self._outputs = open_outputs(_STDOUT, _STDERR)
        self._job = _start_job(options, self._outputs, mask)
        settings = _with_results_folder(options.settings, say)
        self._log = Path(settings.results) / "perfd.log" if settings.results else Path(os.devnull)
        self._monitor, feed_fd = _start_monitor(options.monitor, self._log, _STDERR)
        self._feed = MonitorChannel(feed_fd, SystemClock())
        self._feed.send(FrameKind.SETTINGS, json.dumps(asdict(settings)))
        self._feed.send(FrameKind.STARTED, str(self._job.pid))
        kinds = (FrameKind.STDOUT, FrameKind.STDERR)
        self._pumps = [
            OutputRelay(output.source_fd, output.target_fd, _listener(self._feed, kind))
            for output, kind in zip(self._outputs, kinds, strict=False)
        ]

    def run_job(self) -> int:
        """Pass everything through until the command ends; its exit code."""
        for pump in self._pumps:
            pump.start()
        self._feed.start()
        code = self._job.wait(on_resize=self._resize)
        for pump in self._pumps:
            pump.job_ended()
        return code

    def finish(self, code: int) -> None:
        """Pass on the rest of the output, and let the monitor print and save its summary."""
        try:
            for pump in self._pumps:
                pump.join()
                if pump.target_failed is not None:
                    self._say(f"perfd: output of the job was lost: {pump.target_failed.strerror}.")
            self._feed.report_dropped()
            self._feed.send(FrameKind.ENDED, str(code))
            self._feed.close(SUMMARY_LIMIT_S)
            if self._monitor is None or self._monitor.wait(SUMMARY_LIMIT_S) != 0:
                self._say(_NO_MONITOR.format(log=self._log))
        except (_Interrupted, OSError) as error:
            # The exit code is the job's, whatever fails here.
            self._give_up(f"perfd: no summary: {error}.")
        except subprocess.TimeoutExpired:
            self._give_up(_LATE_MONITOR.format(limit=SUMMARY_LIMIT_S, log=self._log))

    def _give_up(self, why: str) -> None:
        self._say(why)
        if self._monitor is not None:
            self._monitor.kill()

    def _resize(self) -> None:
        for output in self._outputs:
            output.resize()


class _Interrupted(Exception):
    """The user skipped the summary."""


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
    terminated = False

    def interrupt(number: int, frame: FrameType | None) -> None:  # noqa: ARG001  (the signature is signal's)
        nonlocal terminated
        # A time limit means the job, which may just have ended: SLURM kills 30 s later by default.
        if number == signal.SIGTERM and not terminated:
            terminated = True
            return
        raise _Interrupted(f"interrupted by {signal.Signals(number).name}")

    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = [signal.signal(number, interrupt) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


def _start_job(
    options: SupervisorOptions, outputs: Sequence[JobStream], mask: Collection[int]
) -> ChildProcess:
    try:
        return ChildProcess(
            options.command,
            stdout_fd=outputs[0].job_fd,
            stderr_fd=outputs[-1].job_fd,
            own_group=not os.isatty(0),
            launcher=options.launcher,
            signal_mask=mask,
            environment=options.environment,
        )
    finally:
        for output in outputs:
            os.close(output.job_fd)


def _start_monitor(
    command: Sequence[str], log: Path, report_fd: int
) -> tuple[subprocess.Popen[bytes] | None, int]:
    """The monitor, and the pipe that feeds it; the pipe leads nowhere if it cannot be started."""
    read_fd, write_fd = os.pipe()
    try:
        with log.open("ab") as errors:
            monitor = subprocess.Popen(
                command,
                stdin=read_fd,
                stdout=report_fd,
                stderr=errors,
                start_new_session=True,
            )
    except OSError:
        return None, write_fd
    finally:
        os.close(read_fd)
    return monitor, write_fd


def _listener(feed: MonitorChannel, kind: FrameKind) -> Callable[[bytes], None]:
    return lambda chunk: feed.offer(kind, chunk)


def _with_results_folder(settings: MonitorSettings, say: Callable[[str], None]) -> MonitorSettings:
    """The settings, without a results folder if it cannot be created: the summary is still printed."""
    if settings.results is None:
        return settings
    try:
        Path(settings.results).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        say(f"perfd: results not saved: {settings.results}: {error.strerror}.")
        return replace(settings, results=None)
    return settings

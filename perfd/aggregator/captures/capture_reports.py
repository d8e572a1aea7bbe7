"""Reports of captures that end, where this machine can read their traces: made one at a time, by processes.

A trace can take gigabytes of memory and minutes: it is read by a process that gives way to all others, that
the kernel ends first when memory is short, that may be killed, and that ends with this one.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from perfd.aggregator.captures import child_guard
from perfd.aggregator.captures.readable_traces import fetch, has_traces, readable_traces, stored_traces
from perfd.aggregator.captures.trace_document import DOCUMENTS
from perfd.analysis.diagnosis import JobSummary, to_json
from perfd.capture.node import reading
from perfd.capture.object_keys import report_key
from perfd.capture.policy.capture_record import Capture, CaptureReport
from perfd.capture.selection import slow_rank_of
from perfd.clock import Clock
from perfd.errors import CaptureError, StorageError
from perfd.net import ObjectStorage

log = logging.getLogger(__name__)

REPORT_NAME = "perfd.report.html"
DOCUMENT_NAME = "perfd.trace.json"
PERFETTO_NAME = "perfd.perfetto-trace.gz"
_MOST_LOGGED_CHARS = 4096
"""Of what a failed process printed, the end."""
_MAX_WAITING = 64
"""Captures in the queue."""
_MOST_SUBMITTED = 4096
"""Captures that are remembered, so that one with a thousand uploads is not tried a thousand times."""
_TIMEOUT_S = 600.0
"""For one analysis: the largest captures take minutes. Chosen."""
_GONE_S = 1.0
"""How long a stopped thread or process is waited for."""
_MOST_BYTES = 64 << 20
"""Of what an analysis says: it is read into the aggregator's memory."""
_PERFD = (sys.executable, "-P", "-m", "perfd")
_GUARD = (sys.executable, "-I", "-S", child_guard.__file__)

_RETRY_EVERY_S = 60.0
"""When object storage did not answer; twice as long each time."""
_LONGEST_RETRY_S = 900.0
"""Between two attempts, however many failed."""
RETRY_FOR_S = 7 * 86_400.0
"""After the end of a capture: as long as an outage of storage, a weekend included, may take."""

Made = Callable[[str, CaptureReport], None]
"""Takes the report of a capture; called from a separate thread."""
LiveSummary = Callable[[str], JobSummary | None]
"""The newest numbers of a job; called from the same thread."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportStorage:
    """Where traces come from and reports go, if this machine cannot read the traces."""

    files: ObjectStorage
    max_bytes: int
    """Larger traces are not fetched."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Retry:
    due_s: float
    wait_s: float
    capture: Capture


class CaptureReports:
    """Makes the report of each capture that it is given, from `submit` to `stop`; both from any thread."""

    def __init__(
        self,
        made: Made,
        clock: Clock,
        *,
        live: LiveSummary = lambda _: None,
        peaks_file: str | None = None,
        timeout_s: float = _TIMEOUT_S,
        perfd: Sequence[str] = _PERFD,
        storage: ReportStorage | None = None,
    ) -> None:
        """What `live` knows of a job's arithmetic makes MFU of its traces, by the peaks that are known.

        Traces that cannot be read here are fetched from `storage`, where their report is stored, too.
        """
        self._storage = storage
        self._retries: list[_Retry] = []
        self._submitted: dict[str, None] = {}
        self._made = made
        self._live = live
        self._peaks_file = peaks_file
        self._clock = clock
        self._perfd = perfd
        self._timeout_s = timeout_s
        self._waiting: queue.Queue[Capture | None] = queue.Queue(_MAX_WAITING)
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._thread: threading.Thread | None = None
        self._stopped = False

    def submit(self, capture: Capture) -> None:
        """Complete the report of a capture that is over, soon; nothing happens when it left no trace.

        If its traces cannot be read here, submit it again whenever one of them was uploaded.
        """
        if not has_traces(capture):
            return
        with self._lock:
            if capture.capture_id in self._submitted and not (
                self._storage and stored_traces(capture, self._storage.files)
            ):
                return
            self._submitted[capture.capture_id] = None
            while len(self._submitted) > _MOST_SUBMITTED:
                del self._submitted[next(iter(self._submitted))]
            if self._stopped:
                return
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="perfd-reports", daemon=True)
                self._thread.start()
        try:
            self._waiting.put_nowait(capture)
        except queue.Full:
            log.warning("Too many captures wait for their report.", extra={"capture": capture.capture_id})

    def stop(self) -> None:
        """End what runs; it takes about a second at most. Legal twice."""
        with self._lock:
            self._stopped = True
            if self._process is not None:
                _end(self._process)
        with contextlib.suppress(queue.Full):
            self._waiting.put_nowait(None)
        if self._thread is not None:
            self._thread.join(_GONE_S)

    def _work(self) -> None:
        while not self._stopped:
            capture, wait_s = self._next()
            if capture is not None:
                # The traces may be on a file system that hangs: no other thread waits for this one.
                if traces := readable_traces(capture):
                    self._complete(capture, traces, str)
                elif self._storage is not None:
                    self._from_storage(capture, self._storage, wait_s)

    def _next(self) -> tuple[Capture | None, float]:
        """The next capture, or else a due retry, with the delay before another retry if it fails.

        None at the end, and on timeouts. Retries come last: each is slow while storage hangs.
        """
        with contextlib.suppress(queue.Empty):
            return self._waiting.get_nowait(), _RETRY_EVERY_S
        now_s = self._clock.monotonic_s()
        due = next((retry for retry in self._retries if retry.due_s <= now_s), None)
        if due is not None:
            self._retries.remove(due)
            return due.capture, min(_LONGEST_RETRY_S, due.wait_s * 2.0)
        try:
            waits_s = _RETRY_EVERY_S / 4 if self._retries else None
            return self._waiting.get(timeout=waits_s), _RETRY_EVERY_S
        except queue.Empty:
            return None, _RETRY_EVERY_S

    def _from_storage(self, capture: Capture, storage: ReportStorage, wait_s: float) -> None:
        try:
            traces = stored_traces(capture, storage.files)
            if not traces:
                return
            with tempfile.TemporaryDirectory(prefix="perfd-traces-", ignore_cleanup_errors=True) as scratch:
                try:
                    copies = fetch(traces, storage.files, Path(scratch), storage.max_bytes)
                except (CaptureError, OSError) as error:
                    words = str(error)
                    self._made(
                        capture.capture_id, CaptureReport(path=None, words=words, made_unix_s=self._now())
                    )
                    return

                def store(file: Path) -> str:
                    key = report_key(capture.object_folder, capture.capture_id, file.name)
                    storage.files.put(key, file, lambda: self._stopped)
                    return storage.files.url_of(key)

                self._complete(capture, copies, store)
        except (StorageError, OSError) as error:
            if self._now() < (capture.ended_unix_s or 0.0) + RETRY_FOR_S and not self._stopped:
                due_s = self._clock.monotonic_s() + wait_s
                self._retries.append(_Retry(due_s=due_s, wait_s=wait_s, capture=capture))
            log.warning(
                "A report of a capture is delayed.",
                extra={"capture": capture.capture_id, "reason": str(error)},
            )

    def _complete(self, capture: Capture, traces: Sequence[Path], keep: Callable[[Path], str]) -> None:
        """Make what is missing; `keep` takes each file and returns where it is from then on."""
        report = capture.report
        if report is None:
            report = self._report(capture, traces, keep)
            if self._stopped:
                return
            self._made(capture.capture_id, report)
        if report.path and (perfetto_path := self._for_perfetto(traces, keep)) and not self._stopped:
            self._made(capture.capture_id, replace(report, perfetto_path=perfetto_path))

    def _report(self, capture: Capture, traces: Sequence[Path], keep: Callable[[Path], str]) -> CaptureReport:
        try:
            with reading(traces[0].parent):
                return self._analyzed(capture, traces, keep)
        except (CaptureError, OSError) as error:
            return CaptureReport(path=None, words=str(error), made_unix_s=self._now())

    def _analyzed(
        self, capture: Capture, traces: Sequence[Path], keep: Callable[[Path], str]
    ) -> CaptureReport:
        folder = traces[0].parent
        document, page = folder / f".{DOCUMENT_NAME}", folder / f".{REPORT_NAME}"
        try:
            # They name kernels and shapes of the model: as private as the traces.
            with _private(document) as output, _private(page), _scratch() as scratch:
                known = [*self._known(capture.job, Path(scratch)), *_question(capture)]
                verb = ["analyze", "--json", "--report", str(page), *known, *map(str, traces)]
                self._run(verb, scratch, (document, page), output)
            if document.stat().st_size > _MOST_BYTES:
                raise CaptureError(f"The analysis of the traces has more than {_MOST_BYTES >> 20} MiB.")
            analysis = DOCUMENTS.decode(document.read_bytes())
            document.replace(folder / DOCUMENT_NAME)
            page.replace(folder / REPORT_NAME)
        finally:
            for part in (document, page):
                part.unlink(missing_ok=True)
        keep(folder / DOCUMENT_NAME)
        return CaptureReport(
            path=keep(folder / REPORT_NAME),
            words=analysis.words(),
            made_unix_s=self._now(),
            overlap_ratio=analysis.overlap_ratio(),
            shares=analysis.shares(),
        )

    def _for_perfetto(self, traces: Sequence[Path], keep: Callable[[Path], str]) -> str | None:
        """Write the traces as one file for Perfetto; if that fails, the report is kept without it."""
        target = traces[0].parent / PERFETTO_NAME
        part = target.with_name(f".{target.name}")
        try:
            with reading(target.parent), _private(part), _scratch() as scratch:
                verb = ["trace", "export", "--perfetto", str(part), *map(str, traces)]
                self._run(verb, scratch, (part,), subprocess.DEVNULL)
            if part.stat().st_size > _MOST_BYTES:
                # It would not be served.
                log.warning("A capture's file for Perfetto is too large.", extra={"file": str(target)})
                return None
            part.replace(target)
        except (CaptureError, OSError) as error:
            log.warning("The Perfetto file of a capture could not be written.", extra={"error": str(error)})
            return None
        finally:
            part.unlink(missing_ok=True)
        return keep(target)

    def _known(self, job: str, scratch: Path) -> Sequence[str]:
        """The arguments that give the job's FLOPs; none if they are unknown."""
        summary = self._live(job)
        if summary is None or summary.efficiency.model_flops_per_s_per_gpu is None:
            return ()
        file = scratch / "summary.json"
        file.write_bytes(msgspec.json.encode(to_json([summary])))
        peaks = ("--peaks", self._peaks_file) if self._peaks_file else ()
        return ("--summary", str(file), *peaks)

    def _run(self, verb: Sequence[str], scratch: str, parts: Sequence[Path], output: int) -> None:
        """Run a verb of perfd, which writes these parts; raises `CaptureError` with its complaint."""
        paths = (scratch, *map(str, parts))
        command = [*_GUARD, *paths, "--", "env", f"TMPDIR={scratch}", *self._perfd, *verb]
        theirs, ours = os.pipe()
        with os.fdopen(ours):
            with os.fdopen(theirs) as guard_end, self._lock:
                if self._stopped:
                    raise CaptureError("The aggregator was stopped.")
                process = self._process = subprocess.Popen(
                    command,
                    # Only this process has the other end, so the child ends with it.
                    stdin=guard_end,
                    stdout=output,
                    stderr=subprocess.PIPE,
                    # Ctrl-C in a terminal is for the aggregator, which ends it.
                    start_new_session=True,
                )
            self._wait(process)

    def _wait(self, process: subprocess.Popen[bytes]) -> None:
        try:
            _, complaint = process.communicate(timeout=self._timeout_s)
        except subprocess.TimeoutExpired:
            _end(process)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.communicate(timeout=_GONE_S)
            raise CaptureError(f"The traces were not read within {self._timeout_s:g} s.") from None
        finally:
            with self._lock:
                self._process = None
        if process.returncode:
            raise CaptureError(f"No report could be made: {_complaint(process.returncode, complaint)}")

    def _now(self) -> float:
        return self._clock.unix_ns() / 1e9


def _question(capture: Capture) -> Sequence[str]:
    """The arguments that say which rank the capture is about; none where its alert names none."""
    rank = slow_rank_of(capture.labels)
    return () if rank is None else ("--slow-rank", str(rank))


@contextlib.contextmanager
def _private(path: Path) -> Iterator[int]:
    """A new file that only this user can read, open for writing."""
    path.unlink(missing_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _scratch() -> tempfile.TemporaryDirectory[str]:
    """A place for what an analysis unpacks, gigabytes perhaps: one that is killed cleans nothing up."""
    return tempfile.TemporaryDirectory(prefix="perfd-report-", ignore_cleanup_errors=True)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a program and what it started, at once."""
    # Unless it was waited for: then its number may be another one's.
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def _complaint(code: int, output: bytes) -> str:
    """Why a verb failed: what it said last, else how it ended."""
    lines = output.decode(errors="replace").strip().splitlines()
    if any(line.startswith("Traceback ") for line in lines):
        log.error("A report of a capture failed.", extra={"stderr": "\n".join(lines)[-_MOST_LOGGED_CHARS:]})
        return (
            f"unexpected content ({lines[-1].partition(':')[0]}); the log of the aggregator has the details."
        )
    if lines:
        return lines[-1].removeprefix("perfd analyze: ")
    return f"signal {-code} ended the analysis; is there enough memory?" if code < 0 else f"exit code {code}."

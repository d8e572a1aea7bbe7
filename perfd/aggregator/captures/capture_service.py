"""Where captures meet the rest: agents' streams and alerts go in, messages to agents come out."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from perfd.aggregator.alerts import Decision, WebhookOutcome, job_of, unknown_job
from perfd.aggregator.audit import AuditLog, Refusal
from perfd.aggregator.captures.capture_message_checks import check_removed, check_upload, checked_status
from perfd.aggregator.captures.capture_reports import (
    RETRY_FOR_S,
    CaptureReports,
    LiveSummary,
    ReportStorage,
)
from perfd.aggregator.captures.readable_traces import lacks_report
from perfd.aggregator.failures import Failures, Part
from perfd.aggregator.history import HistoryStore, capture_row
from perfd.analysis.data.job_data import Captured
from perfd.capture.policy.capture_json import link_path
from perfd.capture.policy.capture_record import Capture, CaptureReport
from perfd.capture.policy.coordinator import CAPTURE_LABEL, CaptureCoordinator
from perfd.capture.policy.policy_events import ManualRequest
from perfd.capture.selection import JobView
from perfd.clock import Clock
from perfd.config import CaptureProfile
from perfd.errors import RefusedError, StorageError
from perfd.model import (
    Alert,
    CaptureCancel,
    CaptureFilesRemoved,
    CaptureFileUpload,
    CaptureRequest,
    CaptureState,
    CaptureStatus,
)
from perfd.net import ObjectStorage

_RECORDED_WITHIN_S = 5.0
"""A request waits so long for history to store that its capture began. Chosen."""
_MOST_AUDITED = 4096
"""Captures that are remembered so that the audit log has each beginning once."""
_STORED = msgspec.json.Decoder(Capture)
"""Made at import: msgspec 0.22 crashes if two threads first decode a type concurrently."""

Send = Callable[[str, CaptureRequest | CaptureCancel], None]
"""Sends a message to the agent of a node, from any thread."""


class CaptureService:
    """Gives the coordinator every event, with a lock and the time, and carries out what it decides."""

    def __init__(
        self,
        profiles: Mapping[str, CaptureProfile],
        clock: Clock,
        history: HistoryStore | None,
        *,
        failures: Failures | None = None,
        audit: AuditLog | None = None,
        reports: bool = False,
        on_alert: bool = True,
        live: LiveSummary = lambda _: None,
        peaks_file: str | None = None,
        storage: ReportStorage | None = None,
        recorded: bool = False,
    ) -> None:
        """With `reports`, captures that end and whose traces can be read here are analyzed.

        Without `on_alert`, the alerts of perfd's own rules start no capture.
        `live` returns the newest summary of a job; a separate thread calls it.
        Agents upload to `storage`. With `recorded`, a request is accepted once history has it, so that
        whoever continues after a kill knows it.
        """
        self._storage = storage.files if storage else None
        self._reports = (
            CaptureReports(self._report_made, clock, live=live, peaks_file=peaks_file, storage=storage)
            if reports
            else None
        )
        self._recorded = recorded
        self._on_alert = on_alert
        self._failures = failures or Failures()
        self._audit = audit or AuditLog()
        self._audited: dict[str, None] = {}
        """Captures whose beginning is in the audit log."""
        self._coordinator = CaptureCoordinator(profiles)
        self._clock = clock
        self._history = history
        self._lock = threading.Lock()
        self._send: Send = _nowhere
        self._interrupted: Sequence[Capture] = ()
        """Captures whose reports a restart interrupted."""
        if history is not None:
            stored = history.captures(_STORED.decode, limit=1000)
            self._audited = dict.fromkeys(one.capture_id for one in stored)
            since_unix_s = self._now() - RETRY_FOR_S
            self._interrupted = [one for one in stored if lacks_report(one, since_unix_s)]
            with self._lock, self._failures.contained(Part.HISTORY):
                self._coordinator.restore(stored, self._now())

    def send_through(self, send: Send) -> None:
        """From now on messages go this way."""
        self._send = send

    def stop(self) -> None:
        """Make no more reports."""
        if self._reports is not None:
            self._reports.stop()

    def agent_connected(self, node: str) -> None:
        with self._lock:
            self._coordinator.on_agent_connected(node, self._now())
            self._carry_out()

    def agent_gone(self, node: str) -> None:
        with self._lock:
            self._coordinator.on_agent_gone(node, self._now())
            self._carry_out()

    def capture_status(self, node: str, status: CaptureStatus) -> None:
        def take(capture: Capture | None) -> None:
            checked = checked_status(capture, node, status)
            if len(checked.files) < len(status.files):
                self._refuse("A node named files outside of a capture's folder.", node, status.capture_id)
            self._coordinator.on_status(node, checked, self._now())

        self._of_agent(node, status.capture_id, take)

    def capture_files_removed(self, node: str, removed: CaptureFilesRemoved) -> None:
        def take(capture: Capture | None) -> None:
            check_removed(capture, node, removed)
            self._coordinator.on_files_removed(removed)

        self._of_agent(node, removed.capture_id, take)

    def capture_file_upload(self, node: str, upload: CaptureFileUpload) -> None:
        def take(capture: Capture | None) -> None:
            check_upload(capture, node, self._storage.key_of(upload.url) if self._storage else None)
            self._coordinator.on_file_upload(node, upload)

        self._of_agent(node, upload.capture_id, take)

    def _of_agent(self, node: str, capture_id: str, take: Callable[[Capture | None], None]) -> None:
        """Take what a node says about a capture; what raises `RefusedError` is noted and dropped."""
        with self._lock, self._failures.contained(Part.CAPTURE, node=node):
            try:
                take(self._coordinator.capture(capture_id))
            except RefusedError as error:
                self._refuse(str(error), node, capture_id)
            else:
                self._carry_out()

    def on_alerts(
        self,
        changes: Sequence[Alert],
        active: Sequence[Alert],
        view: Callable[[str], JobView | None],
        now_unix_s: float,
    ) -> None:
        """Take the alerts that changed, and all active ones: their captures may have been deferred.

        `view` is what a decision may know of the job of that name.
        """
        if not self._on_alert:
            return
        with self._lock:
            for alert in (alert for alert in changes if alert.firing):
                self._decide(alert, view, now_unix_s)
            for alert in (alert for alert in active if alert.firing):
                if self._coordinator.is_due(alert, alert.target, now_unix_s):
                    self._decide(alert, view, now_unix_s)
            self._carry_out()

    def _decide(self, alert: Alert, view: Callable[[str], JobView | None], now_unix_s: float) -> None:
        with self._failures.contained(Part.CAPTURE, job=alert.target):
            job = view(alert.target)
            if job is not None:
                self._coordinator.on_alert(alert, job, now_unix_s)

    def on_received(
        self,
        alerts: Sequence[Alert],
        views: Mapping[str, JobView | None],
        servers: Mapping[str, JobView | None],
    ) -> list[Decision]:
        """Decide on alerts that an Alertmanager sent; `views` and `servers` are the known ones, by name."""
        with self._lock:
            decisions = [self._receive(alert, views, servers) for alert in alerts]
            self._carry_out()
        return decisions

    def tick(self, now_unix_s: float) -> None:
        """Time passed."""
        with self._lock:
            self._coordinator.tick(now_unix_s)
            self._carry_out()

    def request(self, request: ManualRequest) -> Capture:
        """A person asks for a capture; raises `CaptureError` as the coordinator does.

        Raises `StorageError` if it began, but a kill could make it unknown.
        """
        with self._lock:
            capture = self._coordinator.on_request(request, self._now())
            self._carry_out()
        if self._recorded and self._history and not self._history.wait_stored(_RECORDED_WITHIN_S):
            raise StorageError(
                f"The capture {capture.capture_id} began, but history cannot record it now: "
                "repeat the request with the same `id`."
            )
        return capture

    def cancel(self, capture_id: str, reason: str) -> Capture:
        """A person ends a capture; raises `CaptureError` when there is none of that id."""
        with self._lock:
            capture = self._coordinator.on_cancel(capture_id, reason, self._now())
            self._carry_out()
        return capture

    def failed(self) -> Sequence[tuple[Capture, str, str]]:
        """Captures that failed on a node, with the node and why; once for a node."""
        with self._lock:
            return [
                (capture, node, reason)
                for capture in self._coordinator.remembered()
                for node, reason in {
                    who.node: who.reason
                    for who in capture.participants
                    if who.node and who.state is CaptureState.FAILED
                }.items()
            ]

    def list(self) -> list[dict[str, Any]]:
        """The captures that are remembered, oldest first, as entries of schema perfd.capture/1."""
        with self._lock:
            return self._coordinator.captures()

    def stored_file(self, url: str, max_bytes: int) -> bytes:
        """A report in object storage; raises `StorageError`."""
        storage, key = self._stored(url)
        return storage.read(key, max_bytes)

    def file_link(self, capture_id: str, name: str) -> tuple[str, float]:
        """An address of a capture's stored file, called as in its `link`, and for how many seconds.

        Raises `StorageError`, also if the capture has no such file.
        """
        with self._lock:
            capture = self._coordinator.capture(capture_id)
        wanted = link_path(capture_id, f"/{capture_id}/{name}")
        url = next((url for url in _stored_urls(capture) if link_path(capture_id, url) == wanted), None)
        if url is None:
            raise StorageError(f"Capture {capture_id!r} has no stored file with this name.")
        storage, key = self._stored(url)
        return storage.link(key)

    def _stored(self, url: str) -> tuple[ObjectStorage, str]:
        if self._storage is None:
            raise StorageError(
                f"{url} cannot be read: set `object_storage` in the aggregator's configuration."
            )
        key = self._storage.key_of(url)
        if key is None:
            raise StorageError(f"{url} is not below `object_storage.url`, {self._storage.url}.")
        return self._storage, key

    def outcomes(self) -> Mapping[tuple[str, str, str], int]:
        """How many captures and how many ranks of them are in each state, by (series, job, state)."""
        with self._lock:
            counts = {
                "perfd_captures": self._coordinator.states(),
                "perfd_capture_ranks": self._coordinator.outcomes(),
            }
        return {(name, *key): count for name, found in counts.items() for key, count in found.items()}

    def waiting_uploads(self) -> Mapping[str, tuple[int, float]]:
        """How many files of each job are not in object storage yet, and the longest wait in seconds."""
        with self._lock:
            return self._coordinator.waiting_uploads(self._now())

    def started_by(self, alert: Alert) -> tuple[str, ...]:
        """The ids of the captures that this firing of an alert asked for."""
        with self._lock:
            return self._coordinator.started_by(alert)

    def _receive(
        self,
        alert: Alert,
        views: Mapping[str, JobView | None],
        servers: Mapping[str, JobView | None],
    ) -> Decision:
        if alert.resolved:
            return Decision(alert=alert, outcome=WebhookOutcome.RESOLVED)
        if not alert.labels.get(CAPTURE_LABEL):
            return Decision(alert=alert, outcome=WebhookOutcome.NO_CAPTURE)
        job = servers.get(alert.server) if alert.server else views.get(job_of(alert, views))
        if job is None:
            return Decision(alert=alert, outcome=WebhookOutcome.UNKNOWN_JOB, reason=unknown_job(alert))
        before = self._coordinator.of_firing(alert, job.job)
        if before is not None and not self._coordinator.is_due(alert, job.job, self._now()):
            return Decision(alert=alert, outcome=WebhookOutcome.REPEATED, capture_id=before.capture_id)
        capture = self._coordinator.on_alert(alert, job, self._now())
        if capture is None or capture.state is not None:
            return Decision(
                alert=alert,
                outcome=WebhookOutcome.REFUSED,
                capture_id=capture.capture_id if capture else None,
                reason=capture.reason if capture else "",
            )
        return Decision(alert=alert, outcome=WebhookOutcome.STARTED, capture_id=capture.capture_id)

    def _refuse(self, sentence: str, node: str, capture_id: str) -> None:
        self._audit.refused(Refusal.CAPTURE, sentence, actor=node, about=capture_id)

    def _note(self, changed: Sequence[Capture]) -> None:
        """Write the beginning and the end of captures to the audit log."""
        for capture in changed:
            facts = {"capture": capture.capture_id, "job": capture.job, "nodes": _nodes_of(capture)}
            actor = f"alert {capture.alert}" if capture.alert else "request"
            if capture.capture_id not in self._audited:
                self._audited[capture.capture_id] = None
                self._audit.did("capture requested", actor=actor, tool=str(capture.tool), **facts)
            if capture.state is not None and capture.report is None:
                self._audit.did("capture ended", actor=actor, state=capture.state.value, **facts)
        while len(self._audited) > _MOST_AUDITED:
            del self._audited[next(iter(self._audited))]

    def _carry_out(self) -> None:
        changed = self._coordinator.changed()
        self._note(changed)
        if self._history is not None and changed:
            self._history.submit(
                [
                    capture_row(capture.capture_id, capture.requested_unix_s, msgspec.json.encode(capture))
                    for capture in changed
                ]
            )
        if self._reports is not None:
            for capture in self._interrupted:
                self._reports.submit(capture)
            for capture in changed:
                if capture.state is not None and capture.report is None:
                    self._reports.submit(capture)
            self._interrupted = ()
        for node, message in self._coordinator.drain():
            self._send(node, message)

    def captured(self, job: str) -> Captured | None:
        """The evidence of the job's newest capture that shows where its time goes."""
        with self._lock:
            return self._coordinator.captured(job)

    def _report_made(self, capture_id: str, report: CaptureReport) -> None:
        with self._lock:
            self._coordinator.on_report(capture_id, report)
            self._carry_out()

    def _now(self) -> float:
        return self._clock.unix_ns() / 1e9


def _stored_urls(capture: Capture | None) -> Iterator[str]:
    """Where files and reports of a capture are in object storage."""
    if capture is None:
        return
    for who in capture.participants:
        yield from (stored.url for stored in who.stored.values() if stored.url)
    report = capture.report
    yield from (path for path in (report.path, report.perfetto_path) if path) if report else ()


def _nodes_of(capture: Capture) -> str:
    return " ".join(sorted({who.node for who in capture.participants}))


def _nowhere(_node: str, _message: CaptureRequest | CaptureCancel) -> None:
    """No agent is connected before the server listens."""

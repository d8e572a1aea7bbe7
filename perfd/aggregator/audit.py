"""Who did what, and who was refused: counted, logged, and kept in a file for those who look into it later."""

from __future__ import annotations

import json
import logging
import os
import threading
from collections import Counter
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path

from perfd.clock import Clock, SystemClock
from perfd.errors import ConfigError, RefusedError

log = logging.getLogger(__name__)
_REPEATS_AFTER_S = 60.0
"""The same refusal of the same actor is written once in this time, with the count of those between."""
_MOST_REMEMBERED = 1024
"""Refusals counted one by one; bounds memory against actors that make up names."""


class Refusal(StrEnum):
    """Why something was refused: the label `reason` of `perfd_refused_total`."""

    AGENT_CREDENTIAL = "agent_credential"
    """The certificate or token of an agent is missing, unknown, or not for the node that it names."""
    AGENT_IDENTITY = "agent_identity"
    """An agent's identity belongs to another spool: a copied disk, or an agent that pretends."""
    SEQUENCE_JUMP = "sequence_jump"
    """A batch's number is too far from the newest one."""
    JOB_OWNER = "job_owner"
    """A node that is not of the job described, ended, restarted or placed it."""
    JOB_QUOTA = "job_quota"
    """An owner has as many jobs as it may have."""
    CAPTURE = "capture"
    """A node that is not of the capture answered it, or named files outside of the capture's folder."""
    HTTP = "http"
    """A request without the role that it needs, or for a host name that is not the aggregator's."""


class AuditLog:
    """Counts and writes; any thread may call any method. Raises `ConfigError` for an unusable file."""

    def __init__(self, path: Path | None = None, clock: Clock | None = None) -> None:
        self._path = path
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._counts: Counter[Refusal] = Counter()
        self._written_s: dict[tuple[Refusal, str, str], tuple[float, int]] = {}
        self._writable = True
        if path is not None:
            try:
                _append(path, b"")
            except OSError as error:
                raise ConfigError(f"audit_file: cannot write {path}: {error.strerror or error}.") from error

    def counts(self) -> Mapping[Refusal, int]:
        """How often something was refused, by reason."""
        with self._lock:
            return dict(self._counts)

    def refused(self, refusal: Refusal, sentence: str, *, actor: str, about: str = "") -> None:
        """Note that `actor` was refused something; `about` is the job, agent or path it wanted it of."""
        now_s = self._clock.monotonic_s()
        with self._lock:
            self._counts[refusal] += 1
            key = (refusal, actor, about)
            written_s, since = self._written_s.get(key, (None, 0))
            if written_s is not None and now_s - written_s < _REPEATS_AFTER_S:
                self._written_s[key] = written_s, since + 1
                return
            while len(self._written_s) >= _MOST_REMEMBERED:
                del self._written_s[next(iter(self._written_s))]
            self._written_s[key] = now_s, 0
        facts = {"reason": refusal.value, "actor": actor, "about": about, "since_last": since}
        log.warning(sentence, extra=facts)
        self._write({"action": "refused", "sentence": sentence, **facts})

    def refusal(self, refusal: Refusal, sentence: str, *, actor: str, about: str = "") -> RefusedError:
        """As `refused`; returns what to raise."""
        self.refused(refusal, sentence, actor=actor, about=about)
        return RefusedError(sentence)

    def did(self, action: str, *, actor: str, **facts: object) -> None:
        """Note that `actor` did something that matters, for example started a capture."""
        log.info("Audit: %s.", action, extra={"actor": actor, **facts})
        self._write({"action": action, "actor": actor, **facts})

    def _write(self, facts: Mapping[str, object]) -> None:
        if self._path is None:
            return
        line = {"time_unix_s": round(self._clock.unix_ns() / 1e9, 3), **facts}
        try:
            _append(self._path, json.dumps(line, default=str).encode() + b"\n")
        except OSError as error:
            if self._writable:
                log.error("The audit file cannot be written.", extra={"error": str(error)})  # noqa: TRY400  (the sentence says all)
            self._writable = False
        else:
            self._writable = True


def _append(path: Path, data: bytes) -> None:
    # Opened for each line, so that a file that was rotated away is made anew.
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    descriptor = os.open(path, flags, 0o600)
    try:
        if data:
            os.write(descriptor, data)
    finally:
        os.close(descriptor)

"""Labels and annotations of the namespaces whose pods are on this node, from the API server."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import quote

import msgspec

from perfd.errors import PerfdError, reason_of
from perfd_collectors.pods.api_access import ApiAccess, OutdatedError

log = logging.getLogger(__name__)

_REFRESH_S = 60.0
"""How old an answer may be. Chosen, not measured."""
_TIMEOUT_S = 10.0
_MOST_BYTES = 1 << 20
"""Of an answer; the annotations of an object may have 256 KiB."""


@dataclass(frozen=True, slots=True)
class NamespaceFacts:
    """A namespace; empty where the API server refuses."""

    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)


class _Metadata(msgspec.Struct):
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}


class _Namespace(msgspec.Struct):
    metadata: _Metadata = msgspec.field(default_factory=_Metadata)


_DECODER = msgspec.json.Decoder(_Namespace)


class NamespaceReader:
    """Asks for each namespace that is wanted, and again every minute, in a thread."""

    def __init__(self, access: ApiAccess) -> None:
        self._access = access
        self._known: dict[str, NamespaceFacts] = {}
        self._wanted: frozenset[str] = frozenset()
        self._problem: str | None = None
        self._news = threading.Event()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="perfd-namespaces", daemon=True)

    def start(self) -> None:
        """Begin to ask."""
        self._thread.start()

    def stop(self) -> None:
        """End; legal twice. The thread may take a moment longer: it is a daemon."""
        self._stopping.set()
        self._news.set()

    def want(self, namespaces: frozenset[str]) -> None:
        """These are all whose facts are read from now on."""
        if namespaces != self._wanted:
            self._wanted = namespaces
            self._news.set()

    def facts(self, namespace: str) -> NamespaceFacts | None:
        """What is known of a namespace; None while no answer has come."""
        return self._known.get(namespace)

    def _run(self) -> None:
        refreshed_s = time.monotonic()
        while not self._stopping.is_set():
            self._news.clear()
            old = time.monotonic() - refreshed_s >= _REFRESH_S
            if old:
                refreshed_s = time.monotonic()
            wanted = self._wanted
            self._known = {name: facts for name, facts in self._known.items() if name in wanted}
            for name in sorted(wanted if old else wanted - self._known.keys()):
                self._ask(name)
            self._news.wait(_REFRESH_S)

    def _ask(self, name: str) -> None:
        problem = None
        try:
            facts = self._read(name)
        except (OSError, ValueError, PerfdError, OutdatedError, msgspec.MsgspecError) as error:
            problem = reason_of(error)
        except Exception as error:  # noqa: BLE001  (http.client raises many; the others must be asked)
            problem = f"{type(error).__name__}: {error}"
        else:
            self._known[name] = facts
        if problem is None:
            self._problem = None
            return
        self._known.setdefault(name, NamespaceFacts())
        if problem != self._problem:
            log.warning("A namespace cannot be read: owners and labels of it are unknown.",
                        extra={"namespace": name, "reason": problem})  # fmt: skip
        self._problem = problem

    def _read(self, name: str) -> NamespaceFacts:
        connection = self._access.connection()
        connection.deadline_s = time.monotonic() + _TIMEOUT_S
        try:
            answer = self._access.get(connection, f"/api/v1/namespaces/{quote(name, safe='')}")
            found = _DECODER.decode(answer.read(_MOST_BYTES)).metadata
        finally:
            connection.close()
        return NamespaceFacts(found.labels, found.annotations)

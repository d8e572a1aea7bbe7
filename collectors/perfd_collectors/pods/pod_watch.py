"""Keeps a list of this node's pods by a watch of the API server."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.client import HTTPResponse
from urllib.parse import urlencode

import msgspec

from perfd.errors import PerfdError, reason_of
from perfd.net import BoundedConnection
from perfd_collectors.pods.api_access import ApiAccess, OutdatedError
from perfd_collectors.pods.pod_facts import ApiPod, PodFacts, facts_of

log = logging.getLogger(__name__)

_LIST_TIMEOUT_S = 30.0
"""For the list of a node's pods. Chosen."""
_WATCH_S = 300
"""The API server ends a watch after this time, and the next one begins where it was."""
_RETRY_INITIAL_S = 1.0
_RETRY_MAX_S = 60.0
"""From the first to the longest pause between attempts; it doubles. Chosen."""
_MOST_BYTES = 64 << 20
"""Of an answer; 1,000 pods of 10 kB are 10 MB."""
_GONE = 410
"""HTTP 410: the watch is too old, and the list must be read again."""


class _ListMeta(msgspec.Struct, rename="camel"):
    resource_version: str = ""


class _PodList(msgspec.Struct):
    metadata: _ListMeta = msgspec.field(default_factory=_ListMeta)
    items: list[ApiPod] = []


class _Change(msgspec.Struct):
    type: str
    object: msgspec.Raw


class _Problem(msgspec.Struct):
    code: int = 0
    message: str = ""


_CHANGE = msgspec.json.Decoder(_Change)
_POD = msgspec.json.Decoder(ApiPod)
_POD_LIST = msgspec.json.Decoder(_PodList)


class PodWatch:
    """The pods of a node, by UID; a thread keeps them up to date from `start` to `stop`.

    A pod that was deleted stays, as it was seen last, until `forget`: how it ended may be asked later.
    """

    def __init__(self, access: ApiAccess, node: str) -> None:
        self._access = access
        self._selector = {"fieldSelector": f"spec.nodeName={node}"}
        self._pods: dict[str, PodFacts] = {}
        self._present: set[str] = set()
        self._problem: str | None = "The API server has not answered yet."
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._connection: BoundedConnection | None = None
        self._thread = threading.Thread(target=self._run, name="perfd-pods", daemon=True)

    def start(self) -> None:
        """Begin to watch."""
        self._thread.start()

    def stop(self) -> None:
        """End the watch; legal twice. The thread may take a moment longer: it is a daemon."""
        self._stopping.set()
        connection = self._connection
        if connection is not None:
            connection.close()

    @property
    def problem(self) -> str | None:
        """Why nothing is known at the moment, as a sentence; None while it works."""
        return self._problem

    def pods(self) -> Mapping[str, PodFacts]:
        """All pods that were seen and not forgotten."""
        with self._lock:
            return dict(self._pods)

    def is_present(self, uid: str) -> bool:
        """Whether the API server has the pod."""
        with self._lock:
            return uid in self._present

    def forget(self, uid: str) -> None:
        """Drop a pod that is not there any more."""
        with self._lock:
            if uid not in self._present:
                self._pods.pop(uid, None)

    def _run(self) -> None:
        delay_s = _RETRY_INITIAL_S
        while not self._stopping.is_set():
            try:
                version = self._list()
                self._say(None)
                delay_s = _RETRY_INITIAL_S
                while not self._stopping.is_set():
                    version = self._watch(version)
            except OutdatedError:
                continue
            except (OSError, ValueError, PerfdError, msgspec.MsgspecError) as error:
                self._say(f"Pods cannot be listed: {reason_of(error)}")
            except Exception as error:  # noqa: BLE001  (http.client raises many; the watch must go on)
                self._say(f"Pods cannot be listed: {type(error).__name__}: {error}")
            self._stopping.wait(delay_s)
            delay_s = min(2 * delay_s, _RETRY_MAX_S)

    def _say(self, problem: str | None) -> None:
        if problem == self._problem or self._stopping.is_set():
            return
        self._problem = problem
        if problem is None:
            log.info("The API server shows labels and ends of pods.")
        else:
            log.warning(
                "Jobs are named by their pods' names, and how they end is unknown.", extra={"reason": problem}
            )

    def _list(self) -> str:
        with self._opened({"resourceVersion": "0"}, _LIST_TIMEOUT_S) as answer:
            content = answer.read(_MOST_BYTES)
        found = _POD_LIST.decode(content)
        facts = [self._facts(pod) for pod in found.items]
        with self._lock:
            self._pods |= {pod.uid: pod for pod in facts}
            self._present = {pod.uid for pod in facts}
        return found.metadata.resource_version

    def _watch(self, version: str) -> str:
        """Follow changes until the API server ends the watch; returns where it was."""
        query = {"watch": "1", "resourceVersion": version, "timeoutSeconds": str(_WATCH_S)}
        with self._opened(query | {"allowWatchBookmarks": "true"}, _WATCH_S + _LIST_TIMEOUT_S) as answer:
            while line := answer.readline(_MOST_BYTES):
                change = _CHANGE.decode(line)
                if change.type == "ERROR":
                    problem = msgspec.json.decode(change.object, type=_Problem)
                    if problem.code == _GONE:
                        raise OutdatedError
                    raise PerfdError(problem.message)
                pod = _POD.decode(change.object)
                version = pod.metadata.resource_version
                if change.type != "BOOKMARK":
                    self._take(self._facts(pod), deleted=change.type == "DELETED")
        return version

    def _facts(self, pod: ApiPod) -> PodFacts:
        return facts_of(pod, self._pods.get(pod.metadata.uid))

    def _take(self, pod: PodFacts, *, deleted: bool) -> None:
        with self._lock:
            self._pods[pod.uid] = pod
            if deleted:
                self._present.discard(pod.uid)
            else:
                self._present.add(pod.uid)

    @contextmanager
    def _opened(self, query: Mapping[str, str], timeout_s: float) -> Iterator[HTTPResponse]:
        connection = self._connection = self._access.connection()
        connection.deadline_s = time.monotonic() + timeout_s
        try:
            path = f"/api/v1/pods?{urlencode({**self._selector, **query})}"
            yield self._access.get(connection, path)
        finally:
            connection.close()

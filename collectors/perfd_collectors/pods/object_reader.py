"""Objects of the API server that are read one by one, in a thread."""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from typing import Generic, TypeVar

import msgspec

from perfd.errors import PerfdError, reason_of
from perfd_collectors.pods.api_access import ApiAccess, OutdatedError

_TIMEOUT_S = 10.0
"""For an answer of the API server; the object is requested again later. Chosen."""
_MOST_BYTES = 4 << 20
"""Of an answer; etcd holds objects of 1.5 MiB at most."""

Key = TypeVar("Key", bound=tuple[object, ...])
Found = TypeVar("Found")


class ObjectReader(ABC, Generic[Key, Found]):
    """Asks for each object that is wanted, once or again after a time, from `start` to `stop`."""

    refresh_s: float | None = None
    """How old an answer may be."""

    def __init__(self, access: ApiAccess) -> None:
        self._access = access
        self._known: dict[Key, Found] = {}
        self._wanted: frozenset[Key] = frozenset()
        self._problem: str | None = None
        self._news = threading.Event()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"perfd-{type(self).__name__}", daemon=True)

    @abstractmethod
    def _read(self, key: Key) -> Found:
        """Ask with `_get`; raises `PerfdError`, `OSError` and others."""

    @abstractmethod
    def _unknown(self, key: Key, problem: str, *, new: bool) -> Found:
        """What to take while the API server does not answer; `new` problems are to be logged."""

    def start(self) -> None:
        """Begin to ask."""
        self._thread.start()

    def stop(self) -> None:
        """End; legal twice. The thread may take a moment longer: it is a daemon."""
        self._stopping.set()
        self._news.set()

    def want(self, keys: frozenset[Key]) -> None:
        """These are all that are read from now on; others are forgotten."""
        if keys != self._wanted:
            self._wanted = keys
            self._news.set()

    def found(self, key: Key) -> Found | None:
        """What is known of an object; None while no answer has come."""
        return self._known.get(key)

    def _run(self) -> None:
        refreshed_s = time.monotonic()
        while not self._stopping.is_set():
            self._news.clear()
            old = self.refresh_s is not None and time.monotonic() - refreshed_s >= self.refresh_s
            if old:
                refreshed_s = time.monotonic()
            wanted = self._wanted
            self._known = {key: found for key, found in self._known.items() if key in wanted}
            for key in sorted(wanted if old else wanted - self._known.keys()):
                self._ask(key)
            self._news.wait(self.refresh_s)

    def _ask(self, key: Key) -> None:
        try:
            self._known[key] = self._read(key)
        except (OSError, ValueError, PerfdError, OutdatedError, msgspec.MsgspecError) as error:
            problem = reason_of(error)
        except Exception as error:  # noqa: BLE001  (http.client raises many; the others must be asked)
            problem = f"{type(error).__name__}: {error}"
        else:
            self._problem = None
            return
        unknown = self._unknown(key, problem, new=problem != self._problem)
        self._known.setdefault(key, unknown)
        self._problem = problem

    def _get(self, path: str) -> bytes:
        connection = self._access.connection()
        connection.deadline_s = time.monotonic() + _TIMEOUT_S
        try:
            return self._access.get(connection, path).read(_MOST_BYTES)
        finally:
            connection.close()

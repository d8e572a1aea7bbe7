"""Rounds, alerts and frames in a line each, and a receiver that remembers what it was sent."""

import json
import threading
import time

import numpy as np

from perfd.clock import SystemClock, VirtualClock
from perfd.exporters.exporter import ExporterContext, ExporterTally
from perfd.metrics.series import SeriesFrame, SeriesKey
from perfd.model import Alert, AlertState
from perfd.net.http import HttpServer, Request, Response


def context(clock=None):
    # The longest waits that there can be: so tests know when an exporter tries again.
    return ExporterContext(clock=clock or VirtualClock(), tally=ExporterTally(), chance=lambda: 1.0)


def real_context():
    return context(SystemClock())


def alert(name="Slow", *, fired=100.0, resolved=None, **labels):
    return Alert(
        name=name,
        labels={"alertname": name, **labels},
        state=AlertState.FIRING if resolved is None else AlertState.RESOLVED,
        value=1.0,
        active_at_unix_s=fired,
        fired_at_unix_s=fired,
        resolved_at_unix_s=resolved,
    )


def frame(time_s, *values, keys=None):
    keys = keys or [SeriesKey.of("perfd_x", {"i": str(i)}) for i in range(len(values))]
    return SeriesFrame(time_s, keys, np.array(values, np.float64))


def until(condition, *, within_s=60.0):
    """What a condition gives once it is true; an assertion fails when it never is."""
    deadline = time.monotonic() + within_s
    while not (found := condition()):
        assert time.monotonic() < deadline, "the condition never held"
        time.sleep(0.05)
    return found


class Receiver:
    """Takes requests on loopback and remembers them; a context manager. `answer` says what it replies."""

    def __init__(self):
        self.requests: list[Request] = []
        self.answer = lambda _request: Response(body=b"")
        self._lock = threading.Lock()

    def __enter__(self):
        self._server = HttpServer("127.0.0.1:0", {"/take/": self._take, "/take": self._take})
        return self

    def __exit__(self, *_):
        self._server.close()

    @property
    def url(self):
        return f"http://{self._server.address}/take"

    @property
    def bodies(self):
        with self._lock:
            return [json.loads(request.body) for request in self.requests]

    def _take(self, request):
        with self._lock:
            self.requests.append(request)
        return self.answer(request)

"""Asks a Prometheus-compatible server for series over a range of time (its HTTP API, /api/v1/query_range)."""

from __future__ import annotations

import logging
import math
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import urlencode

import msgspec

from perfd.clock import Clock
from perfd.config import HistoryConfig
from perfd.errors import ConfigError, PerfdError
from perfd.exporters.http_post import Poster, PostResponse

log = logging.getLogger(__name__)

KEY = "history.query_url"
_PATH = "/api/v1/query_range"
_MAX_ANSWER_BYTES = 16 << 20
"""Of an answer, which is held in memory. Chosen."""
_STEPS_S = (15.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0, 7200.0, 21_600.0, 86_400.0, 604_800.0)
"""Few, so that a range which moves on has the same instants; servers rarely store more often than 15 s."""
_KEPT_ANSWERS = 64
"""In memory, the newest."""
_WAIT_AFTER_ERROR_S = 30.0
"""Before a server that failed is asked again: each chart would wait for it."""


@dataclass(frozen=True, slots=True)
class TimeRange:
    """From one time to another, at no more than so many instants."""

    start_unix_s: float
    end_unix_s: float
    points: int


@dataclass(frozen=True, slots=True)
class QueriedSeries:
    """One series of an answer: values at instants, oldest first."""

    labels: Mapping[str, str]
    times_unix_s: Sequence[float]
    values: Sequence[float]


class _Result(msgspec.Struct):
    metric: dict[str, str]
    values: list[tuple[float, str]]


class _Data(msgspec.Struct):
    result: list[_Result]


class _Answer(msgspec.Struct):
    data: _Data


_ANSWERS = msgspec.json.Decoder(_Answer, strict=False)
"""Created at import: msgspec 0.22 crashes if two threads first decode a type concurrently."""


class PrometheusRanges:
    """Series of one server. Answers are kept until the next instant of their range has come.

    Raises `ConfigError` if the address or a secret file cannot be used. Any thread may ask; one request is
    under way at a time.
    """

    def __init__(self, config: HistoryConfig, clock: Clock) -> None:
        if config.query_url is None:
            raise ConfigError(f"{KEY}: required.")
        self._poster = Poster(
            config.query_url.rstrip("/") + _PATH,
            config.query_http,
            key=KEY,
            max_answer_bytes=_MAX_ANSWER_BYTES + 1,
        )
        self._clock = clock
        self._lock = threading.Lock()
        self._known: OrderedDict[tuple[str, float, float], Sequence[QueriedSeries]] = OrderedDict()
        self._failed: tuple[float, str] | None = None
        """When it failed, and why."""

    def range(self, expression: str, span: TimeRange) -> Sequence[QueriedSeries]:
        """The series of an expression; raises `PerfdError` if the server does not answer with series."""
        least_s = (span.end_unix_s - span.start_unix_s) / max(1, span.points - 1)
        step_s = next((one for one in _STEPS_S if one >= least_s), least_s)
        # Instants are multiples of the step: a page that asks again gets what it has, and one more.
        start = math.ceil(span.start_unix_s / step_s) * step_s
        end = math.floor(span.end_unix_s / step_s) * step_s
        if end < start:
            return ()
        with self._lock:
            key = (expression, start, end)
            if key in self._known:
                self._known.move_to_end(key)
                return self._known[key]
            self._known[key] = found = self._ask(expression, start, end, step_s)
            while len(self._known) > _KEPT_ANSWERS:
                self._known.popitem(last=False)
            return found

    def close(self) -> None:
        """Close the connection."""
        self._poster.close()

    def _ask(self, expression: str, start: float, end: float, step_s: float) -> Sequence[QueriedSeries]:
        now_s = self._clock.monotonic_s()
        if self._failed is not None and now_s - self._failed[0] < _WAIT_AFTER_ERROR_S:
            raise PerfdError(self._failed[1])
        body = urlencode({"query": expression, "start": f"{start:.3f}", "end": f"{end:.3f}", "step": step_s})
        answer = self._poster.post(body.encode(), {"Content-Type": "application/x-www-form-urlencoded"})
        try:
            found = answered_series(answer)
        except PerfdError as error:
            if self._failed is None:
                log.warning("Charts show shorter ranges.", extra={"reason": str(error)})
            self._failed = now_s, str(error)
            raise
        self._failed = None
        return found


def answered_series(answer: PostResponse) -> Sequence[QueriedSeries]:
    """Raises `PerfdError` if it is not an answer with series."""
    if not answer.taken:
        what = f"answered with status {answer.status}" if answer.status else "did not answer"
        raise PerfdError(f"The server in {KEY} {what}: {answer.text[:200]}")
    if len(answer.text) > _MAX_ANSWER_BYTES:
        raise PerfdError(f"The server in {KEY} answered with more than {_MAX_ANSWER_BYTES >> 20} MiB.")
    try:
        found = _ANSWERS.decode(answer.text).data.result
        return [
            QueriedSeries(one.metric, [at for at, _ in one.values], [float(text) for _, text in one.values])
            for one in found
            if one.values
        ]
    except (ValueError, RecursionError) as error:
        raise PerfdError(f"The server in {KEY} did not answer with series: {error}") from error

"""A real Prometheus server, for tests that compare with it; needs the `prometheus` program."""

from __future__ import annotations

import http.client
import json
import math
import struct
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlencode

from perfd.metrics.series import SeriesKey
from perfd.protobuf_encoding import field, varint
from tests.support.services import prometheus

STALE_MARKER_BITS = 0x7FF0000000000002
"""The NaN by which Prometheus marks the end of a series (model/value)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryResult:
    """An instant query's answer: a value for each series, or the reason of an error."""

    samples: Mapping[SeriesKey, float]
    error: str | None = None


class PrometheusServer:
    """Talks to a server on loopback."""

    def __init__(self, port: int) -> None:
        self.port = port

    def write(self, series: Mapping[SeriesKey, Iterable[tuple[int, float | None]]]) -> None:
        """Remote-write samples as (milliseconds, value); None marks the end of a series."""
        body = _snappy(b"".join(field(1, _time_series(key, samples)) for key, samples in series.items()))
        headers = {
            "Content-Encoding": "snappy",
            "Content-Type": "application/x-protobuf",
            "X-Prometheus-Remote-Write-Version": "0.1.0",
        }
        status, answer = self._post("/api/v1/write", body, headers)
        if status != http.client.NO_CONTENT:
            raise OSError(f"Prometheus refused the samples with {status}: {answer!r}")

    def query(self, expression: str, time_unix_s: float) -> QueryResult:
        """Evaluate an expression at an instant."""
        body = urlencode({"query": expression, "time": f"{time_unix_s:.3f}"}).encode()
        _, answer = self._post("/api/v1/query", body, {"Content-Type": "application/x-www-form-urlencoded"})
        document = json.loads(answer)
        if document["status"] != "success":
            return QueryResult(samples={}, error=document["error"])
        data = document["data"]
        if data["resultType"] == "scalar":
            return QueryResult(samples={SeriesKey(""): _number(data["result"][1])})
        return QueryResult(
            samples={_key(item["metric"]): _number(item["value"][1]) for item in data["result"]}
        )

    def _post(self, path: str, body: bytes, headers: Mapping[str, str]) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            connection.request("POST", path, body, dict(headers))
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()


@contextmanager
def prometheus_server(folder: Path) -> Iterator[PrometheusServer]:
    """Run a server with its data in `folder` and its remote-write receiver on; it ends with the block.

    It takes samples of any time. Raises `FileNotFoundError` when the program is not installed.
    """
    with prometheus(folder, "global: {}\n", retention="100y") as server:
        yield PrometheusServer(server.port)


def _key(metric: Mapping[str, str]) -> SeriesKey:
    labels = dict(metric)
    return SeriesKey.of(labels.pop("__name__", ""), labels)


def _number(text: str) -> float:
    return float(text.replace("Inf", "inf"))


def _time_series(key: SeriesKey, samples: Iterable[tuple[int, float | None]]) -> bytes:
    labels = sorted([("__name__", key.name), *key.labels])
    parts = [field(1, field(1, name.encode()) + field(2, value.encode())) for name, value in labels]
    parts.extend(field(2, _sample(time_ms, value)) for time_ms, value in samples)
    return b"".join(parts)


def _sample(time_ms: int, value: float | None) -> bytes:
    if value is None:
        bits = struct.pack("<Q", STALE_MARKER_BITS)
    else:
        bits = struct.pack("<d", math.nan if math.isnan(value) else value)
    return b"\x09" + bits + b"\x10" + varint(time_ms)


def _snappy(data: bytes) -> bytes:
    """Snappy's block format with literals only: valid, and not smaller."""
    encoded = bytearray(varint(len(data)))
    for start in range(0, len(data), 65536):
        chunk = data[start : start + 65536]
        # 61 << 2: a literal whose length minus one follows in two bytes.
        encoded += bytes([61 << 2]) + struct.pack("<H", len(chunk) - 1) + chunk
    return bytes(encoded)

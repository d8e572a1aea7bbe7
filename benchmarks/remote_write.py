"""What remote write costs: requests made from frames, and real servers that take them.

    python -m benchmarks.remote_write [--series 100000] [--rounds 10] [--json]

First only the making of requests, beside protobuf's own encoder on the same samples. Then the exporter as it
is, into a real Prometheus and a real VictoriaMetrics, until each says that it has stored every sample. Needs
the programs `prometheus` and `victoria-metrics`; without them only the first part runs.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import cramjam
import numpy as np
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from perfd.clock import SystemClock
from perfd.config import RemoteWriteConfig
from perfd.exporters.exporter import ExporterContext, ExporterTally, Round
from perfd.exporters.remote_write import FrameEncoder, RemoteWriteExporter
from perfd.metrics.series import SeriesFrame, SeriesKey
from tests.support.services import Service, prometheus, victoria_metrics

SCHEMA = "perfd.bench.remote_write/1"
_MAX_SAMPLES = 5_000
_SERVERS: dict[str, tuple[str, Callable[[Path], Service], str]] = {
    "Prometheus": (
        "prometheus",
        lambda folder: prometheus(folder, "global: {}\n"),
        "prometheus_tsdb_head_samples_appended_total",
    ),
    "VictoriaMetrics": (
        "victoria-metrics",
        victoria_metrics,
        'vm_rows_inserted_total{type="promremotewrite"}',
    ),
}


def frames(series: int, rounds: int, start_s: float) -> list[SeriesFrame]:
    """Rounds of GPUs' power, a second apart."""
    keys = [
        SeriesKey.of(
            "perfd_gpu_power_watts",
            {"node": f"node{i // 8:05d}", "gpu": str(i % 8), "job": "pretrain", "rank": str(i)},
        )
        for i in range(series)
    ]
    random = np.random.default_rng(1)
    return [SeriesFrame(start_s + number, keys, random.random(series)) for number in range(rounds)]


def encoding(given: Sequence[SeriesFrame]) -> float:
    """Samples a second into compressed requests; the median of the rounds after the first."""
    encoder = FrameEncoder({"cluster": "c1"}, _MAX_SAMPLES)
    took = []
    for frame in given:
        started_s = time.perf_counter()
        for body in encoder.encode({"nodes": frame}):
            cramjam.snappy.compress_raw(body.data)
        took.append(time.perf_counter() - started_s)
    return len(given[0].keys) / statistics.median(took[1:])


def protobuf_encoding(frame: SeriesFrame) -> float:
    """The same by protobuf's own encoder, which has no use for the labels of the round before."""
    request_type = _write_request_type()
    started_s = time.perf_counter()
    for start in range(0, len(frame.keys), _MAX_SAMPLES):
        request = request_type()
        some = slice(start, start + _MAX_SAMPLES)
        for key, value in zip(frame.keys[some], frame.values[some].tolist(), strict=True):
            series = request.timeseries.add()
            labels = {**dict(key.labels), "cluster": "c1", "__name__": key.name}
            for name, text in sorted(labels.items()):
                series.labels.add(name=name, value=text)
            series.samples.add(value=value, timestamp=round(frame.time_unix_s * 1000))
        cramjam.snappy.compress_raw(request.SerializeToString())
    return len(frame.keys) / (time.perf_counter() - started_s)


def delivery(server: Service, stored: str, given: Sequence[SeriesFrame]) -> dict[str, Any]:
    """The exporter into a server, and what the server counted."""
    tally = ExporterTally()
    config = RemoteWriteConfig(url=f"{server.url}/api/v1/write", interval_s=0.0)
    exporter = RemoteWriteExporter(config, ExporterContext(clock=SystemClock(), tally=tally))
    started_s = time.perf_counter()
    for frame in given:
        exporter.export(Round(time_unix_s=frame.time_unix_s, frames={"nodes": frame}))
        # The rounds are of the past; one of now has what waits sent.
        exporter.export(Round(time_unix_s=time.time()))
    exporter.close()
    took_s = time.perf_counter() - started_s
    samples = sum(len(frame.keys) for frame in given)
    for _ in range(600):
        if _counted(server, stored) >= samples:
            break
        time.sleep(0.05)
    return {
        "samples_per_s": samples / took_s,
        "sent": tally.sent,
        "lost": tally.lost,
        "stored": _counted(server, stored),
    }


def _counted(server: Service, name: str) -> int:
    lines = [line for line in server.text("/metrics").splitlines() if line.startswith(name)]
    return sum(int(float(line.split()[-1])) for line in lines)


def _write_request_type() -> Any:  # noqa: ANN401  (protobuf makes the class)
    field = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="remote.proto", package="prometheus", syntax="proto3")
    shapes = {
        "Label": (("name", field.TYPE_STRING, None), ("value", field.TYPE_STRING, None)),
        "Sample": (("value", field.TYPE_DOUBLE, None), ("timestamp", field.TYPE_INT64, None)),
        "TimeSeries": (("labels", None, "Label"), ("samples", None, "Sample")),
        "WriteRequest": (("timeseries", None, "TimeSeries"),),
    }
    for name, fields in shapes.items():
        message = file.message_type.add(name=name)
        for number, (called, kind, of) in enumerate(fields, start=1):
            message.field.add(
                name=called,
                number=number,
                label=field.LABEL_OPTIONAL if of is None else field.LABEL_REPEATED,
                type=kind if of is None else field.TYPE_MESSAGE,
                type_name=None if of is None else f".prometheus.{of}",
            )
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("prometheus.WriteRequest"))


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--series", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    given = frames(args.series, args.rounds, float(int(time.time()) - 300))
    result: dict[str, Any] = {
        "schema": SCHEMA,
        "series": args.series,
        "encoded_per_s": encoding(given),
        "protobuf_encoded_per_s": protobuf_encoding(given[-1]),
        "servers": {},
    }
    for name, (program, make, stored) in _SERVERS.items():
        if shutil.which(program) is None:
            continue
        with tempfile.TemporaryDirectory() as folder, make(Path(folder)) as server:
            result["servers"][name] = delivery(server, stored, given)
    if args.json:
        print(json.dumps(result))
        return
    print(
        f"requests: {result['encoded_per_s']:,.0f} samples/s; protobuf's own encoder: "
        f"{result['protobuf_encoded_per_s']:,.0f} samples/s"
    )
    for name, found in result["servers"].items():
        print(
            f"{name}: {found['samples_per_s']:,.0f} samples/s, {found['sent']:,} sent, "
            f"{found['stored']:,} stored, {found['lost']:,} lost"
        )


if __name__ == "__main__":
    main()

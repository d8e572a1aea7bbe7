"""Time to render a page of 100,000 series: perfd against prometheus_client, in the same run.

    python -m benchmarks.aggregator_render [--series 100000] [--rounds 9] [--json]

Both render the same names, labels and values. The best of several rounds counts, because
other work on the machine can only make a round slower.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from prometheus_client import CollectorRegistry, Gauge, generate_latest

from perfd.aggregator.series import MetricNames, PageRenderer
from perfd.collector import ColumnKind
from perfd.metrics.exposition import exported_name
from perfd.metrics.series import SeriesFrame, SeriesKey
from perfd.model import Scope

SCHEMA = "perfd.bench.render/1"
_COLUMNS = [f"metric{number}_ratio" for number in range(25)]


def measure(series: int = 100_000, rounds: int = 9) -> dict[str, Any]:
    """Seconds of each renderer for the same series, and their ratio."""
    gpus = series // len(_COLUMNS)
    labels = [
        {"job": "llm", "node": f"node{gpu // 8:05d}", "gpu": str(gpu % 8), "rank": str(gpu)}
        for gpu in range(gpus)
    ]
    names = [exported_name(Scope.GPU, column, ColumnKind.GAUGE) for column in _COLUMNS]
    values = np.random.default_rng(1).random(gpus * len(names))
    keys = [SeriesKey.of(name, label) for label in labels for name in names]
    renderer = PageRenderer(MetricNames([]).describe)
    cold_s = _seconds(lambda: renderer.render(SeriesFrame(0.0, keys, values)))
    registry = _registry(names, labels, values)
    perfd_s = client_s = float("inf")
    for _ in range(rounds):
        perfd_s = min(perfd_s, _seconds(lambda: renderer.render(SeriesFrame(0.0, keys, values))))
        client_s = min(client_s, _seconds(lambda: generate_latest(registry)))
    return {
        "schema": SCHEMA,
        "series": len(keys),
        "page_bytes": len(renderer.render(SeriesFrame(0.0, keys, values))),
        "first_render_s": cold_s,
        "perfd_s": perfd_s,
        "prometheus_client_s": client_s,
        "ratio": client_s / perfd_s,
    }


def _registry(
    names: list[str], labels: list[dict[str, str]], values: NDArray[np.float64]
) -> CollectorRegistry:
    registry = CollectorRegistry()
    gauges = [Gauge(name, name, ("job", "node", "gpu", "rank"), registry=registry) for name in names]
    for row, label in enumerate(labels):
        for column, gauge in enumerate(gauges):
            gauge.labels(**label).set(float(values[row * len(names) + column]))
    return registry


def _seconds(action: Callable[[], object]) -> float:
    started_s = time.perf_counter()
    action()
    return time.perf_counter() - started_s


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--series", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    result = measure(args.series, args.rounds)
    if args.json:
        print(json.dumps(result))
        return
    print(
        f"{result['series']:,} series, {result['page_bytes'] / 1e6:.1f} MB: "
        f"perfd {result['perfd_s'] * 1e3:.0f} ms (first {result['first_render_s'] * 1e3:.0f} ms), "
        f"prometheus_client "
        f"{result['prometheus_client_s'] * 1e3:.0f} ms, ratio {result['ratio']:.1f}"
    )


if __name__ == "__main__":
    main()

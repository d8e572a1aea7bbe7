"""Time to append a frame and to evaluate the rules that ship.

    python -m benchmarks.rules [--gpus 32] [--seconds 600] [--json]

Each second of a made-up job gives a frame of all metrics that some rule reads, and as many that
none does; the rules are evaluated every second, as by default.
"""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

import numpy as np

from perfd.metrics.series import SeriesFrame, SeriesKey
from perfd.rules import RuleEngine, builtin_rules, load_rules

SCHEMA = "perfd.bench.rules/1"
_START_UNIX_S = 1_700_000_000.0


def measure(gpus: int = 32, seconds: int = 600) -> dict[str, Any]:
    """Mean seconds of one append and one evaluation."""
    rules = load_rules(builtin_rules())
    engine = RuleEngine(rules)
    store = engine.new_store()
    keys = _keys(sorted({read.selection.name or "" for read in engine.reads()}), gpus)
    typical = np.array([_healthy(key.name) for key in keys])
    values = typical * np.random.default_rng(1).uniform(0.99, 1.01, (seconds, len(keys)))
    append_s = evaluate_s = 0.0
    alerts = 0
    for second in range(seconds):
        frame = SeriesFrame(_START_UNIX_S + second, keys, values[second])
        begin = time.perf_counter()
        store.append(frame)
        middle = time.perf_counter()
        evaluation = engine.evaluate(store, frame.time_unix_s)
        append_s += middle - begin
        evaluate_s += time.perf_counter() - middle
        alerts = max(alerts, len(evaluation.alerts))
    return {
        "schema": SCHEMA,
        "rules": sum(len(group.rules) for group in rules.groups),
        "series": len(keys),
        "most_alerts": alerts,
        "append_s": append_s / seconds,
        "evaluate_s": evaluate_s / seconds,
    }


def _healthy(name: str) -> float:
    """A value with which no alert is raised."""
    if name.endswith(("_up", "_success")):
        return 1.0
    return 0.45 if name.endswith(("mfu_ratio", "sm_active_ratio")) else 0.0


def _keys(names: list[str], gpus: int) -> list[SeriesKey]:
    """A series of each metric for the job, or for each GPU, and as many that no rule reads."""
    keys: list[SeriesKey] = []
    for name in names:
        if name.startswith("perfd_gpu_"):
            of_gpus = [{"node": f"node{gpu // 8}", "gpu": str(gpu % 8)} for gpu in range(gpus)]
            keys.extend(SeriesKey.of(name, {**labels, "perfd_job": "run"}) for labels in of_gpus)
        else:
            keys.append(SeriesKey.of(name, {"job": "run"}))
    return keys + [SeriesKey.of(f"unread_{key.name}", dict(key.labels)) for key in keys]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gpus", type=int, default=32)
    parser.add_argument("--seconds", type=int, default=600)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    result = measure(args.gpus, args.seconds)
    if args.json:
        print(json.dumps(result))
        return
    print(
        f"{result['rules']} rules over {result['series']} series, up to {result['most_alerts']} alerts: "
        f"append {result['append_s'] * 1e6:.0f} us, evaluate {result['evaluate_s'] * 1e6:.0f} us"
    )


if __name__ == "__main__":
    main()

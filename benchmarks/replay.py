"""How many times real time a replay runs at full speed, through agent, spool, gRPC, aggregator and rules.

    python -m benchmarks.replay [--rounds 7] [--json]

The start of the servers is not counted, the summary is. The median of several rounds.
"""

from __future__ import annotations

import argparse
import json
from statistics import median
from typing import Any

from perfd.recording import bundled, bundled_names
from perfd.session.replay_session import ReplayOptions, replay

SCHEMA = "perfd.bench.replay/1"


def measure(rounds: int) -> dict[str, Any]:
    """The factor of each recording that ships."""
    factors: dict[str, list[float]] = {}
    for _ in range(rounds):
        # Round by round, so that what else the machine does falls on all alike.
        for name in bundled_names():
            result = replay(ReplayOptions(recording=bundled(name)))
            factors.setdefault(name, []).append(result.played_s / result.took_s)
    return {
        "schema": SCHEMA,
        "rounds": rounds,
        "recordings": {
            name: {"median": median(values), "min": min(values), "max": max(values)}
            for name, values in factors.items()
        },
    }


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    result = measure(args.rounds)
    if args.json:
        print(json.dumps(result))
        return
    for name, factor in result["recordings"].items():
        print(
            f"{name:12} {factor['median']:4.0f} times real time ({factor['min']:.0f} to {factor['max']:.0f})"
        )


if __name__ == "__main__":
    main()

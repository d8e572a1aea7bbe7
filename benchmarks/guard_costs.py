"""What it costs the aggregator to trust no one: the same bursts with and without, in turn.

    python -m benchmarks.guard_costs [--pairs 6] [--nodes 200] [--burst 40] [--json]

With: mutual TLS, limits on records, acknowledgment after the commit. Without: plain text, no limits,
acknowledgment once a batch is applied. History is written in both. Then the same for one agent's spool:
batches appended and read with and without their checksum.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from contextlib import ExitStack, closing
from pathlib import Path
from statistics import median
from typing import Any
from unittest.mock import patch

from benchmarks.aggregator_ingest import measure
from perfd.agent.spool import Spool

SCHEMA = "perfd.bench.guards/1"
_SPOOLED = 2000
_SPOOLED_BYTES = 8000


def compare(pairs: int, nodes: int, burst: int) -> dict[str, Any]:
    """Medians of both, and each pair's ratio of throughput with to that without."""
    found: dict[bool, list[dict[str, Any]]] = {True: [], False: []}
    spool_s: dict[bool, list[float]] = {True: [], False: []}
    for pair in range(pairs):
        # Neither is always the first.
        for guards in (True, False) if pair % 2 else (False, True):
            found[guards].append(measure(nodes, 10, 1, burst, history=True, tls=guards, guards=guards))
            spool_s[guards].append(_spool_s(checksums=guards))
    ratios = [
        with_["burst_batches_per_s"] / without["burst_batches_per_s"]
        for with_, without in zip(found[True], found[False], strict=True)
    ]
    return {
        "schema": SCHEMA,
        "pairs": pairs,
        "throughput_ratios": ratios,
        "throughput_ratio": median(ratios),
        **{
            f"{what}_{'with' if guards else 'without'}": median(one[what] for one in found[guards])
            for what in ("burst_batches_per_s", "burst_cpu_s_per_batch")
            for guards in (True, False)
        },
        "spool_s_per_batch_with": median(spool_s[True]),
        "spool_s_per_batch_without": median(spool_s[False]),
    }


def _spool_s(*, checksums: bool) -> float:
    """CPU time to append, read and acknowledge a batch."""
    payload = bytes(range(256)) * (_SPOOLED_BYTES // 256)
    with ExitStack() as stack:
        if not checksums:
            stack.enter_context(patch("perfd.agent.spool.spool_rows._checksum", lambda *_: 0))
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        spool = stack.enter_context(closing(Spool(Path(folder), max_bytes=1 << 26)))
        started_s = time.process_time()
        for _ in range(_SPOOLED):
            spool.append(lambda _: payload, records=10)
        after = 0
        while read := spool.read_after(after, limit=64):
            after = read[-1].sequence
            spool.acknowledge(after)
        return (time.process_time() - started_s) / _SPOOLED


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=6)
    parser.add_argument("--nodes", type=int, default=200)
    parser.add_argument("--burst", type=int, default=40, help="batches of each node in a burst")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    result = compare(args.pairs, args.nodes, args.burst)
    if args.json:
        print(json.dumps(result))
        return
    for which in ("without", "with"):
        print(
            f"{which:>7}: {result[f'burst_batches_per_s_{which}']:,.0f} batches/s, "
            f"{result[f'burst_cpu_s_per_batch_{which}'] * 1e6:.0f} us of CPU a batch; "
            f"an agent's spool {result[f'spool_s_per_batch_{which}'] * 1e6:.0f} us a batch"
        )
    ratios = ", ".join(f"{ratio:.2f}" for ratio in sorted(result["throughput_ratios"]))
    print(f"throughput with over without: {result['throughput_ratio']:.2f} (pairs: {ratios})")


if __name__ == "__main__":
    main()

"""What the page of a large job costs in a real Chromium, beside that of a small one in the same run.

    python -m benchmarks.page_costs [--ranks 16384] [--steps 10000] [--rounds 9] [--json]

Of each: milliseconds until the page shows its numbers, CPU time of the main thread per event, and kilobytes
on the wire for the page (with nothing in the cache) and per event. Aggregator and browser share the machine.
No garbage collection is forced; what Chromium collects by itself is part of an event. `idle_cpu_ms` is the
same measurement without an event: what the measuring itself costs.
"""

from __future__ import annotations

import argparse
import json
import statistics
from typing import Any

from tests.support.chromium import Tab, chromium
from tests.support.large_job import LargeJob, large_job

SCHEMA = "perfd.bench.page/1"
_SHOWN = "performance.getEntriesByName('shown')"
_READY = f"{_SHOWN}.length && document.querySelector('#gpu-power_w output')?.innerText"
_SMALL = (64, 200)
"""Ranks and steps of the reference."""


def measure(ranks: int = 16_384, steps: int = 10_000, rounds: int = 9) -> dict[str, Any]:
    """Costs of both pages, measured in turns."""
    with large_job(ranks, steps) as large, large_job(*_SMALL, slow=5) as small, chromium() as browser:
        jobs = {"large": large, "small": small}
        # One, since those behind it would draw nothing.
        tab = browser.tab()
        sizes = {name: _page_bytes(tab, job) for name, job in jobs.items()}
        shown: dict[str, list[float]] = {name: [] for name in jobs}
        for _ in range(rounds):
            for name, job in jobs.items():
                tab.open(f"{job.url}/jobs/{job.name}", _READY)
                shown[name].append(tab.run(f"{_SHOWN}[0].startTime"))
        events = {name: _events(tab, job, rounds) for name, job in jobs.items()}
    return {
        "schema": SCHEMA,
        "ranks": ranks,
        "steps": steps,
        "rounds": rounds,
        **{
            name: {
                "shown_ms": {"median": statistics.median(shown[name]), "min": min(shown[name])},
                "page_bytes": sizes[name],
                **events[name],
            }
            for name in jobs
        },
    }


def _page_bytes(tab: Tab, job: LargeJob) -> int:
    tab.look()
    tab.open(f"{job.url}/jobs/{job.name}", _READY)
    return sum(tab.transferred().values())


def _events(tab: Tab, job: LargeJob, rounds: int) -> dict[str, Any]:
    """Of the main thread's CPU time and of bytes, per drawing after an event."""
    tab.open(f"{job.url}/jobs/{job.name}", _READY)
    cpu_ms, idle_ms, sizes = [], [], []
    for _ in range(rounds):
        before = tab.metrics()["ThreadTime"]
        tab.run("new Promise((done) => setTimeout(done, 500))")
        idle_ms.append(1000 * (tab.metrics()["ThreadTime"] - before))
        tab.run("performance.clearResourceTimings()")
        before = tab.metrics()["ThreadTime"]
        job.advance()
        # Nothing is asked of the page meanwhile: that would cost it, too.
        tab.run(
            "new Promise((done) => new MutationObserver(() => setTimeout(done, 500)).observe("
            "document.getElementById('updated'), {childList: true, characterData: true, subtree: true}))"
        )
        spent = tab.metrics()["ThreadTime"] - before
        answers = tab.run(
            "performance.getEntriesByType('resource').filter(({name}) => name.includes('/ranks?')).length"
        )
        if answers:
            cpu_ms.append(1000 * spent / answers)
            sizes.append(sum(tab.transferred().values()) / answers)
    return {
        "event_cpu_ms": {"median": statistics.median(cpu_ms), "min": min(cpu_ms)},
        "idle_cpu_ms": {"median": statistics.median(idle_ms), "min": min(idle_ms)},
        "event_bytes": statistics.median(sizes),
    }


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", type=int, default=16_384, help="a multiple of 64")
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", action="store_true", help=f"print one object of schema {SCHEMA}")
    args = parser.parse_args()
    result = measure(args.ranks, args.steps, args.rounds)
    if args.json:
        print(json.dumps(result))
        return
    for name, ranks in (("large", args.ranks), ("small", _SMALL[0])):
        of, ms = result[name], "{median:.0f} ms (at best {min:.0f})"
        print(
            f"{ranks:,} ranks: shown after {ms.format(**of['shown_ms'])}, {of['page_bytes'] / 1e3:.0f} kB; "
            f"an event {ms.format(**of['event_cpu_ms'])} of CPU, {of['event_bytes'] / 1e3:.0f} kB; "
            f"without an event {ms.format(**of['idle_cpu_ms'])}"
        )


if __name__ == "__main__":
    main()

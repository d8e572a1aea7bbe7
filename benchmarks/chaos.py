"""Faults at random, from a seed: what was sent is stored or counted.

    python -m benchmarks.chaos [--seconds 60] [--faults N] [--fault-every SECONDS] [--agents 5]
        [--lines-per-s 250] [--seed 1] [--no-flips]

An aggregator in its own process, with its history on disk; agents' real spools and streams in this one, each
sending progress lines of its own job. Every tenth agent's spool has room for one line, so that it drops some.
About every two seconds, or as often as `--fault-every` says, one fault: the aggregator is killed, stopped and
continued, its disk is full for a while or at its start, a bit of its closed history flips, its clock or that
of an agent steps by up to 40 days, an agent is closed and opened. At the end, without faults, every
acknowledged line is in the history, and every other one was counted as dropped. Only those may be missing
that were on a page of the history file when one of its bits flipped.
"""

from __future__ import annotations

import argparse
import math
import resource
import signal
import sqlite3
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random

from benchmarks.chaos_fleet import ChaosAgent, ChaosAggregator, ChaosFleet
from perfd.aggregator.history.sqlite.salvaged_rows import DamagedFile

_CLOCK_STEPS_S = (-40 * 86_400.0, -3600.0, -1.0, 0.0, 1.0, 3600.0, 40 * 86_400.0)
_DRAIN_WITHIN_S = 300.0
_SHOWN_PARTS = 10
_CHECKED_EVERY = 50
"""Faults: a long run shows what it has found, should it not come to its end."""
_PAGE_BYTES = 4096
_SPOOL_BYTES = 1 << 24
_SMALL_SPOOL_BYTES = 60
"""One line."""
_SMALL_SPOOL_EVERY = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class ChaosResult:
    """What became of the lines that agents were given."""

    faults: Counter[str]
    sent: int
    stored: int
    dropped: int
    """Given up by spools, and counted by them."""
    lost: int
    """Acknowledged, and neither stored nor counted, nor on a page of which a bit flipped."""
    uncounted: int
    """Sent, and neither stored nor counted: what is lost, and what no spool gave."""
    lost_with_pages: int
    """Acknowledged and missing, and on a page of which a bit flipped: this is allowed."""
    on_flipped_pages: int
    """How many lines were on such pages."""
    resident_bytes: list[int]
    """Of the aggregator before each fault, and at the end."""


def run(
    seconds: float,
    agents: int,
    seed: int,
    *,
    flips: bool = True,
    most_faults: int | None = None,
    fault_every_s: float = 0.0,
    lines_per_s: float = 250.0,
    ended: Callable[[], bool] | None = None,
    checked: Callable[[ChaosResult], None] | None = None,
) -> ChaosResult:
    """Faults for so long, then a quiet end; the same faults for the same seed, if not at the same moments.

    From one fault to the next it is at least `fault_every_s`. Once `ended` holds there are no more of them.
    `checked` gets what became of the lines so far, after every 50 faults.
    """
    chance = Random(seed)
    faults: Counter[str] = Counter()
    kinds = ["kill", "stop", "fill", "agent", "restart_full", "clock", "agent_clock"]
    kinds += ["flip"] if flips else []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        aggregator = ChaosAggregator(folder)
        fleet = ChaosFleet(
            [
                ChaosAgent(folder / f"spool{i}", f"job{i}", aggregator.address, _spool_bytes(i))
                for i in range(agents)
            ],
            lines_per_s,
        )
        for agent in fleet.agents:
            agent.open()
        until_s = time.monotonic() + seconds
        left: list[str] = []
        resident_bytes: list[int] = []
        try:
            while (
                time.monotonic() < until_s
                and (most_faults is None or faults.total() < most_faults)
                and not (ended and ended())
            ):
                begin_s = time.monotonic()
                fleet.send(chance.uniform(0.3, 1.0))
                if not left:
                    # Each kind in its turn, in another order each time.
                    left = chance.sample(kinds, len(kinds))
                kind = left.pop()
                resident_bytes.append(aggregator.resident_bytes())
                _fault(kind, aggregator, fleet, chance)
                faults[kind] += 1
                fleet.send(min(begin_s + fault_every_s, until_s) - time.monotonic())
                if checked is not None and faults.total() % _CHECKED_EVERY == 0:
                    checked(_quiet(aggregator, fleet, faults, resident_bytes))
            return _quiet(aggregator, fleet, faults, resident_bytes)
        finally:
            for agent in fleet.agents:
                with suppress(Exception):
                    agent.uplink.stop(0.0)
            aggregator.kill()


def _spool_bytes(index: int) -> int:
    return _SMALL_SPOOL_BYTES if index % _SMALL_SPOOL_EVERY == _SMALL_SPOOL_EVERY - 1 else _SPOOL_BYTES


def _fault(kind: str, aggregator: ChaosAggregator, fleet: ChaosFleet, chance: Random) -> None:
    for agent in fleet.agents:
        agent.note()
    if kind == "stop":
        aggregator.signal(signal.SIGSTOP)
        fleet.send(chance.uniform(0.1, 1.0))
        aggregator.signal(signal.SIGCONT)
    elif kind == "fill":
        aggregator.limit_files(0)
        fleet.send(chance.uniform(0.5, 2.0))
        aggregator.limit_files(resource.RLIM_INFINITY)
    elif kind == "clock":
        aggregator.clock_offset.write_text(str(chance.choice(_CLOCK_STEPS_S)), encoding="ascii")
    elif kind == "agent_clock":
        chance.choice(fleet.agents).clock_offset_ns = round(chance.choice(_CLOCK_STEPS_S) * 1e9)
    elif kind == "agent":
        agent = chance.choice(fleet.agents)
        agent.close()
        agent.open()
    else:
        aggregator.kill()
        if kind == "flip":
            fleet.on_flipped_pages.update(_flip(aggregator.history, chance))
        aggregator.start(full=kind == "restart_full")
        if kind == "restart_full":
            fleet.send(1.0)
            aggregator.limit_files(resource.RLIM_INFINITY)


def _flip(path: Path, chance: Random) -> set[tuple[str, int]]:
    """Flip a bit, and return the job and step of each line on its page."""
    data = bytearray(path.read_bytes())
    if len(data) <= _PAGE_BYTES:
        return set()
    place = chance.randrange(100, len(data))
    with DamagedFile(path) as file:
        lines = {
            (str(row[0]), int(str(row[2])))
            for page in file.salvage()
            if page.table == "steps" and page.number == place // _PAGE_BYTES + 1
            for row in page.rows
        }
    data[place] ^= 1 << chance.randrange(8)
    path.write_bytes(data)
    return lines


def _quiet(
    aggregator: ChaosAggregator, fleet: ChaosFleet, faults: Counter[str], resident_bytes: Sequence[int]
) -> ChaosResult:
    """Without faults for a while: what became of all lines so far."""
    aggregator.limit_files(resource.RLIM_INFINITY)
    for agent in fleet.agents:
        agent.uplink.wait_acknowledged(agent.spool.last_sequence, _DRAIN_WITHIN_S)
        agent.note()
    stored: dict[str, set[int]] = defaultdict(set)
    with closing(sqlite3.connect(f"file:{aggregator.history}?mode=ro", uri=True)) as history:
        for job, step in history.execute("SELECT job, step FROM steps"):
            stored[job].add(step)
    lost = uncounted = dropped = lost_with_pages = 0
    for agent in fleet.agents:
        missing = set(range(1, agent.number + 1)) - stored[agent.job]
        allowed = missing & {step for job, step in fleet.on_flipped_pages if job == agent.job}
        lost_with_pages += len(allowed)
        missing -= allowed
        given_up = agent.dropped + agent.spool.stats().dropped_records
        lost += max(0, len(missing & agent.acknowledged_steps()) - given_up)
        uncounted += max(0, len(missing) - given_up)
        dropped += given_up
    return ChaosResult(
        faults=faults.copy(),
        sent=sum(agent.number for agent in fleet.agents),
        stored=sum(map(len, stored.values())),
        dropped=dropped,
        lost=lost,
        uncounted=uncounted,
        lost_with_pages=lost_with_pages,
        on_flipped_pages=len(fleet.on_flipped_pages),
        resident_bytes=[*resident_bytes, aggregator.resident_bytes()],
    )


def main() -> int:
    """Print what became of the lines; returns 1 when one is lost."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--faults", type=int, help="end after so many, before the time is over")
    parser.add_argument("--fault-every", type=float, default=0.0, help="least seconds between two faults")
    parser.add_argument("--agents", type=int, default=5)
    parser.add_argument("--lines-per-s", type=float, default=250.0, help="of all agents together")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--no-flips", action="store_true", help="damage no history: nothing may be lost")
    args = parser.parse_args()
    terminated = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: terminated.set())
    result = run(
        args.seconds,
        args.agents,
        args.seed,
        flips=not args.no_flips,
        most_faults=args.faults,
        fault_every_s=args.fault_every,
        lines_per_s=args.lines_per_s,
        ended=terminated.is_set,
        checked=_show,
    )
    _show(result)
    return 1 if result.lost or result.uncounted else 0


def _show(result: ChaosResult) -> None:
    print(f"{sum(result.faults.values())} faults: {dict(result.faults)}")
    print(
        f"{result.sent:,} lines sent, {result.stored:,} stored, {result.dropped:,} dropped and counted, "
        f"{result.lost:,} lost, {result.uncounted:,} neither stored nor counted; "
        f"of {result.on_flipped_pages:,} on pages with a flipped bit {result.lost_with_pages:,} lost"
    )
    sizes = result.resident_bytes
    part = max(1, math.ceil(len(sizes) / _SHOWN_PARTS))
    most = (max(sizes[begin : begin + part]) for begin in range(0, len(sizes), part))
    shown = ", ".join(f"{size / 1e6:.0f}" for size in most)
    print("MB of the aggregator, the most in each tenth:", shown, flush=True)


if __name__ == "__main__":
    sys.exit(main())

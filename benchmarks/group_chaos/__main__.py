"""A group of aggregators on real servers, parts of which are killed, stopped and paused at random.

    python -m benchmarks.group_chaos [--faults 200] [--seconds S] [--agents 6] [--members 3]
        [--batches-per-s 30] [--lease-s 3] [--seed 1] [--only nats member postgres storage agent]
        [--how kill] [--single] [--postgres-away-s SECONDS] [--json]

Three nats-servers with replicated streams, three aggregators, PostgreSQL, an S3 server (moto's) behind a
proxy, and agents' real spools and uplinks, all on loopback. Each fault ends one or two of them at once, while
agents send, begin new jobs, and answer captures. At the end, without faults:

- each batch that an agent sent is in PostgreSQL, once;
- each job's alert is there once, and was announced to a webhook; copies of a message, and alerts that fired
  again, are counted apart;
- each capture that was accepted has an outcome, and its file is in object storage if it is said to be.

Needs nats-server, PostgreSQL, and moto in the folder PERFD_SERVICES.
"""

from __future__ import annotations

import argparse
import json
import logging
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from benchmarks.group_chaos.faults import Outcome, run

SCHEMA = "perfd.bench.group_chaos/1"


def main() -> int:
    """Print what became of everything; returns 1 when something is lost or doubled."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--faults", type=int, default=200)
    parser.add_argument("--agents", type=int, default=6)
    parser.add_argument("--members", type=int, default=3)
    parser.add_argument("--batches-per-s", type=float, default=30.0, help="of all agents together")
    parser.add_argument("--lease-s", type=float, default=3.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", nargs="+", default=[], help="nats, member, postgres, storage, agent")
    parser.add_argument("--how", choices=("kill", "stop", "pause"), help="of servers and aggregators")
    parser.add_argument("--single", action="store_true", help="never two at once")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="end before all faults")
    parser.add_argument("--postgres-away-s", type=float, default=0.0, help="before the faults")
    parser.add_argument("--folder", type=Path, help="where logs and spools stay")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    # Agents say with each fault that they cannot reach the stream.
    logging.getLogger("perfd").setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory() as name:
        folder = args.folder or Path(name)
        folder.mkdir(exist_ok=True)
        began_s = time.monotonic()
        outcome = run(
            folder,
            faults=args.faults,
            agents=args.agents,
            members=args.members,
            batches_per_s=args.batches_per_s,
            lease_s=args.lease_s,
            seed=args.seed,
            only=args.only,
            how=args.how,
            single=args.single,
            seconds=args.seconds,
            postgres_away_s=args.postgres_away_s,
            report=lambda said: print(f"{time.monotonic() - began_s:7.1f} s: {said}", flush=True),
        )
    print(json.dumps({"schema": SCHEMA, **asdict(outcome)}) if args.json else _text(outcome))
    return 1 if outcome.failures else 0


def _text(one: Outcome) -> str:
    return (
        f"{sum(one.faults.values())} faults, {one.pairs} times two at once: {one.faults}\n"
        f"{one.sent:,} batches sent, {one.stored:,} stored, {one.missing:,} missing, {one.twice:,} twice\n"
        + "".join(f"{job}: {what}\n" for job, what in one.wrong_jobs.items())
        + f"{one.jobs} jobs: {one.alerts} alerts stored, {one.alerts_lost} lost, {one.alerts_twice} twice; "
        f"{one.announced} announced, {one.copies} copies, {one.fired_again} fired again; "
        f"{one.postgres_away_moves} partitions moved without PostgreSQL\n"
        f"{one.captures} captures accepted: {one.capture_states}, {one.captures_undefined} undefined, "
        f"{one.files_missing} files missing\n"
        f"jobs answer again after the kill or pause of an aggregator, s: {_spread(one.member_kill_s)}; "
        f"where no other one ran: {_spread(one.last_member_kill_s)}\n"
        f"with a step sent 1 s after the loss of a NATS server: {_spread(one.nats_loss_s)}, "
        f"{one.nats_loss_moves} partitions moved; "
        f"the page was late by at most, s: {_spread(one.nats_loss_late_s)}\n"
        f"{one.overdue} times not within three minutes\n"
        + "".join(f"{what}\n" for what in one.unfinished)
        + f"load {one.load_average:.1f}"
    )


def _spread(values: Sequence[float]) -> str:
    if not values:
        return "none"
    p95 = sorted(values)[round(0.95 * (len(values) - 1))]
    median = statistics.median(values)
    return f"median {median:.1f}, p95 {p95:.1f}, longest {max(values):.1f} ({len(values)} times)"


if __name__ == "__main__":
    sys.exit(main())

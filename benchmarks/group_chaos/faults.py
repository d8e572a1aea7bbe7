"""Faults at random, the same for a seed, and what became of everything."""

from __future__ import annotations

import contextlib
import os
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from benchmarks.group_chaos.site import ALERT_STEP, FINAL, SETTLES_WITHIN_S, Site, running_site
from tests.support.group_members import Member, seconds_until

_NEW_JOB_EVERY = 5
"""Faults from one job of an agent to its next."""
_RECOVERS_WITHIN_S = 180.0
_NATS_AHEAD_S = 1.0
_TWO_AT_ONCE = 1 / 3
_AT_ONCE_AGAIN = 0.25
"""The share of faults that begin before the one before is over."""


@dataclass(kw_only=True)
class Outcome:
    """What became of everything that agents sent and people asked for."""

    faults: dict[str, int] = field(default_factory=dict)
    pairs: int = 0
    """Faults of two parts at once."""
    sent: int = 0
    stored: int = 0
    missing: int = 0
    """Acknowledged, and in no history."""
    twice: int = 0
    """Steps of one job that are in two attempts."""
    wrong_jobs: dict[str, str] = field(default_factory=dict)
    """Jobs of which steps are missing or twice, or whose alert is: which."""
    jobs: int = 0
    """Those whose alert was due."""
    alerts: int = 0
    alerts_lost: int = 0
    alerts_twice: int = 0
    announced: int = 0
    """Jobs whose alert the webhook got."""
    copies: int = 0
    """Announcements of a start that the webhook had: a receiver drops them by their `id`."""
    fired_again: int = 0
    """Further starts of an alert that were announced."""
    postgres_away_moves: int = 0
    """Partitions that had a new lease at the end of the time without PostgreSQL."""
    captures: int = 0
    """Accepted requests."""
    capture_states: dict[str, int] = field(default_factory=dict)
    captures_undefined: int = 0
    """Accepted, and unknown or without an outcome."""
    files_missing: int = 0
    """Said to be in object storage, and not there."""
    member_kill_s: list[float] = field(default_factory=list)
    """From the kill of one aggregator alone until all jobs answer with newer steps."""
    last_member_kill_s: list[float] = field(default_factory=list)
    """The same where no other aggregator answered then, as those killed before were still starting."""
    nats_loss_s: list[float] = field(default_factory=list)
    """From the loss of one NATS server until all jobs answer with a step that was sent a second later."""
    nats_loss_late_s: list[float] = field(default_factory=list)
    """How far the page was behind what was sent, at most, from the loss of one NATS server until then."""
    overdue: int = 0
    """Faults after which not all jobs had newer steps within three minutes; the run goes on."""
    unfinished: list[str] = field(default_factory=list)
    """What had not come to its end minutes after the last fault; the rest is compared all the same."""
    nats_loss_moves: int = 0
    """Partitions that changed their holder then."""
    load_average: float = 0.0

    @property
    def failures(self) -> int:
        """What must be zero."""
        return (
            self.missing
            + self.twice
            + self.alerts_lost
            + self.alerts_twice
            + self.captures_undefined
            + self.files_missing
            + (self.jobs - self.announced)
            + len(self.unfinished)
        )


def run(
    folder: Path,
    *,
    faults: int,
    agents: int = 6,
    members: int = 3,
    batches_per_s: float = 30.0,
    lease_s: float = 3.0,
    seed: int = 1,
    only: Sequence[str] = (),
    how: str | None = None,
    single: bool = False,
    seconds: float = float("inf"),
    postgres_away_s: float = 0.0,
    report: Callable[[str], None] = lambda _: None,
) -> Outcome:
    """Faults at random, the same for the same seed, then a quiet end; raises `TimeoutError`.

    Before them PostgreSQL is away for so long. After `seconds` there are no more faults.
    """
    chance = Random(seed)
    outcome = Outcome()
    with running_site(folder, agents, members, batches_per_s, lease_s) as site:
        seconds_until(lambda: site.answers(site.wanted()), SETTLES_WITHIN_S)
        if postgres_away_s:
            leases = site.leases()
            site.postgres.stop()
            time.sleep(postgres_away_s)
            outcome.postgres_away_moves = len(leases - site.leases())
            site.postgres.start()
            site.faults["postgres away"] += 1
        until_s = time.monotonic() + seconds
        for number in range(faults):
            if time.monotonic() > until_s:
                break
            if number % _NEW_JOB_EVERY == _NEW_JOB_EVERY - 1:
                for agent in site.agents:
                    agent.begin_job()
            report(_fault(site, chance, outcome, only, how, single=single))
        return _quiet(site, outcome)


def _fault(
    site: Site, chance: Random, outcome: Outcome, only: Sequence[str], how: str | None, *, single: bool
) -> str:
    """One fault from its beginning to its end; returns it in words."""
    kinds = {kind: names for kind, names in site.part_names().items() if not only or kind in only}
    several = chance.random() < _TWO_AT_ONCE and not single
    # First the kind, or an agent would be the most likely victim.
    # An aggregator that holds nothing is not missed.
    choices = {**kinds, "member": site.holding() or kinds.get("member", [])}
    parts = {chance.choice(choices[kind]) for kind in chance.choices(list(kinds), k=2 if several else 1)}
    if chance.random() < 0.5:
        site.ask_for_capture(chance)
    before = next((one for one in map(Member.holders, site.running())), [])
    others = [one for n, one in enumerate(site.members) if f"member{n}" not in {*parts, *site.down}]
    others = [one for one in others if (one.get("/api/v1/group") or {}).get("connected")]
    began_s, wanted = time.monotonic(), site.wanted()
    # As in the logs of all parts.
    began_at = time.strftime("%H:%M:%S")
    ends = []
    said = []
    for part in sorted(parts):
        site.down.add(part)
        done, end = site.begin(part, chance, how)
        ends.append((part, end))
        said.append(f"{part} {done}")
        site.faults[f"{part.rstrip('0123456789')} {done}"] += 1
    outcome.pairs += len(parts) > 1
    alone = said[0] if len(said) == 1 else ""
    if chance.random() < 0.3:
        site.ask_for_capture(chance)
    took = ""
    if alone.startswith(("member", "nats")) and not alone.endswith("stop"):
        if alone.startswith("nats"):
            # What servers had already passed on says nothing about the others.
            wanted = site.wanted(_NATS_AHEAD_S)
        late_s = [0.0]
        in_time = _happens(lambda: site.answers(wanted, late_s.append))
        outcome.overdue += not in_time
        took_s = time.monotonic() - began_s
        took = f", answered after {took_s:.1f} s"
        if alone.startswith("nats"):
            outcome.nats_loss_s.append(took_s)
            outcome.nats_loss_late_s.append(max(late_s))
            after = next(one for one in map(Member.holders, site.running()))
            moved = sum(a != b for a, b in zip(before, after, strict=False))
            outcome.nats_loss_moves += moved
            took += f", at most {max(late_s):.1f} s late, {moved} partitions moved"
        else:
            (outcome.member_kill_s if others else outcome.last_member_kill_s).append(took_s)
            took += "" if others else ", no other one ran"
    else:
        time.sleep(chance.uniform(0.2, 6.0))
    for part, end in ends:
        end()
        site.down.discard(part)
    if single:
        # One that just started does not lead, and its loss with the next one would be that of two.
        _happens(site.has_healthy_nats)
    if chance.random() >= _AT_ONCE_AGAIN:
        wanted = site.wanted()
        outcome.overdue += not _happens(lambda: site.recovered() and site.answers(wanted))
    return f"{began_at} {', '.join(said)}{took}"


def _quiet(site: Site, outcome: Outcome) -> Outcome:
    """Without faults: wait until all is stored, and compare."""
    site.over.set()
    time.sleep(1.0)
    for agent in site.agents:
        if not agent.uplink.wait_acknowledged(agent.spool.last_sequence, SETTLES_WITHIN_S):
            outcome.unfinished.append(f"{agent.node} waits for acknowledgments.")
    if not _happens(site.recovered):
        outcome.unfinished.append("The members do not agree on who holds what.")
    sent = {job: last for agent in site.agents for job, last in agent.sent.items()}
    # Others were over before their alert was due.
    alerted = {job for job, last in sent.items() if last >= ALERT_STEP}
    outcome.sent, outcome.jobs = sum(sent.values()), len(alerted)
    with contextlib.suppress(TimeoutError):
        # Rows that are there twice stand for no other one.
        seconds_until(lambda: sum(map(len, _stored(site).values())) >= outcome.sent, SETTLES_WITHIN_S)
        seconds_until(lambda: site.count("alerts") >= len(alerted), 60.0)
        seconds_until(lambda: len(site.receiver.fired) >= len(alerted), 60.0)
        seconds_until(lambda: not site.has_open_captures(), SETTLES_WITHIN_S)
    stored = _stored(site)
    outcome.stored = sum(map(len, stored.values()))
    for job, last in sent.items():
        missing = sorted(set(range(1, last + 1)) - stored[job].keys())
        twice = sorted(step for step, attempts in stored[job].items() if len(attempts) > 1)
        outcome.missing += len(missing)
        outcome.twice += sum(len(attempts) - 1 for attempts in stored[job].values())
        if missing or twice:
            outcome.wrong_jobs[job] = f"{last} steps, missing {missing}, twice {twice}"
    alerts = Counter(job for (job,) in site.rows("SELECT job FROM {}.alerts"))
    for job, labels, started_unix_s in site.rows("SELECT job, labels, started_unix_s FROM {}.alerts"):
        if alerts[job] > 1:
            what = f"alert {labels} since {started_unix_s:.1f}"
            outcome.wrong_jobs[job] = "; ".join(filter(None, [outcome.wrong_jobs.get(job), what]))
    outcome.alerts = alerts.total()
    outcome.alerts_lost = len(alerted - alerts.keys())
    outcome.alerts_twice = sum(n - 1 for n in alerts.values())
    outcome.announced = len(site.receiver.fired)
    outcome.copies = sum(n - 1 for starts in site.receiver.fired.values() for n in starts.values())
    outcome.fired_again = sum(len(starts) - 1 for starts in site.receiver.fired.values())
    outcome.captures = len(site.accepted)
    if not _happens(lambda: site.captures() is not None):
        outcome.unfinished.append("Not all partitions say what became of captures.")
    found = {one["id"]: one for one in site.captures() or ()}
    states = Counter(found[one]["state"] if one in found else "unknown" for one in site.accepted)
    outcome.capture_states = dict(states)
    outcome.captures_undefined = sum(n for state, n in states.items() if state not in FINAL)
    uploads = [
        (one["id"], file["upload"])
        for one in found.values()
        for rank in one["ranks"]
        for file in rank["files"]
        if file.get("upload", {}).get("state") == "stored"
    ]
    outcome.files_missing = sum(not site.is_stored(upload["url"], name) for name, upload in uploads)
    outcome.faults = dict(site.faults)
    outcome.load_average = os.getloadavg()[0]
    return outcome


def _stored(site: Site) -> dict[str, dict[int, list[int]]]:
    """By job and step, the attempts that history has it in."""
    stored: dict[str, dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    for job, step, attempt in site.rows("SELECT job, step, attempt FROM {}.steps"):
        stored[job][step].append(attempt)
    return stored


def _happens(true: Callable[[], bool]) -> bool:
    try:
        seconds_until(true, _RECOVERS_WITHIN_S)
    except TimeoutError:
        return False
    return True

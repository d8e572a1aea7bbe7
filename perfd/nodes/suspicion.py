"""How each node and GPU stands against its peers: the probability that it is a bad one.

Of two nodes of the same kind, the busier one is blamed more often, and so is each node of a cluster whose
jobs straggle much. The incidents of a node are therefore compared with those of its peers per GPU-hour. A
node is either as its peers, or bad: then its rate is some factor of theirs, from 2 to 200, each power of it
as likely. Given how many incidents there are in all, how many of them fall on the node is binomial. Bayes'
rule gives the probability that it is bad, from the share of nodes that are bad to begin with.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from perfd.nodes.incidents import Incident, decayed
from perfd.nodes.node_ledger import NodeLedger, NodeRecord, Scheduler
from perfd.thresholds import THRESHOLDS

_FACTORS = np.geomspace(2.0, 200.0, 48)
"""By how much a bad node may be blamed more often than its peers."""
_MOST_PER_JOB = 2.0
"""What one job says of a node counts at most so much: its own program may be what repeats."""
_HOUR_S = 3600.0
"""Seconds in an hour."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """How one node, or one GPU of it, stands against its peers. All is decayed to one instant."""

    gpu: str = ""
    """Empty for the node as a whole."""
    incidents: float
    """Weighted; one job counts for two at most."""
    observed_gpu_h: float
    expected: float | None = None
    """Incidents that its peers would have had in that time; None without peers."""
    suspect_ratio: float | None = None
    """The probability that it is bad, 0 to 1; None if nothing blamed it, or it has no peers."""
    peers: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeStanding:
    """One node, its GPUs that were blamed, and why."""

    node: str
    kind: str
    scheduler: Scheduler | None = None
    whole: Standing
    gpus: Sequence[Standing] = ()
    """Of those that were blamed, the most suspect first."""
    incidents: Sequence[Incident] = ()
    """That count, the newest first."""
    lost_gpu_h: float = 0.0
    """GPU-hours that jobs lost by it, decayed."""
    jobs: int = 0
    """How many jobs blamed it."""

    @property
    def suspect_ratio(self) -> float | None:
        """The greatest of the node and its GPUs."""
        known = [one.suspect_ratio for one in (self.whole, *self.gpus) if one.suspect_ratio is not None]
        return max(known, default=None)

    @property
    def suspect(self) -> bool:
        """Whether it is worse than its peers beyond doubt, by more than one job."""
        ratio = self.suspect_ratio
        return ratio is not None and ratio >= THRESHOLDS.node_suspect_ratio and self.jobs >= 2

    @property
    def worst_gpu(self) -> str:
        """The GPU that is most of it; empty when it is the node."""
        if not self.gpus or self.gpus[0].suspect_ratio is None:
            return ""
        return self.gpus[0].gpu if self.gpus[0].suspect_ratio >= (self.whole.suspect_ratio or 0.0) else ""


def suspect_probability(
    incidents: float, observed: float, peer_incidents: float, peer_observed: float
) -> float | None:
    """The probability that what had these incidents in that time is bad, compared with its peers.

    None where it or its peers were not observed: without a base rate there is no suspect.
    """
    if not (observed > 0 and peer_observed > 0):
        return None
    # Logarithms of how the two shares change with the factor: powers of many incidents are beyond a double.
    growth = np.log((observed + peer_observed) / (_FACTORS * observed + peer_observed))
    likelier = incidents * (np.log(_FACTORS) + growth) + peer_incidents * growth
    top = float(likelier.max())
    factor = top + math.log(float(np.exp(likelier - top).mean()))
    prior = THRESHOLDS.node_bad_ratio
    return float(1 / (1 + math.exp(min(700.0, -factor)) * (1 - prior) / prior))


def standings(ledger: NodeLedger, now_unix_s: float) -> list[NodeStanding]:
    """Every node that was observed or blamed, the most suspect first, then by what it cost."""
    records = list(ledger.records.values())
    counted = {record.node: _counted(record) for record in records}
    tables = {record.node: _table(record, counted[record.node], ledger, now_unix_s) for record in records}
    totals = _totals(records, tables)
    found = [
        _standing(
            one,
            counted[one.node],
            tables[one.node],
            totals,
            lost_gpu_s=_lost(counted[one.node], ledger, now_unix_s),
        )
        for one in records
    ]
    found.sort(key=lambda one: (-(one.suspect_ratio or 0.0), -one.lost_gpu_h, one.node))
    return found


@dataclass(slots=True)
class _Sum:
    """Incidents and GPU-seconds of the nodes of one kind, and of their GPUs."""

    incidents: float = 0.0
    observed_gpu_s: float = 0.0
    count: int = 0

    def add(self, incidents: float, observed_gpu_s: float) -> None:
        self.incidents += incidents
        self.observed_gpu_s += observed_gpu_s
        self.count += observed_gpu_s > 0


_Table = Mapping[str, tuple[float, float]]
"""By GPU, and the node itself as `_WHOLE`: weighted incidents and GPU-seconds."""
_WHOLE = "*"


def _counted(record: NodeRecord) -> list[Incident]:
    """The incidents that were long enough, or errors, and are about what is there now; newest first."""
    kept = [
        one
        for one in record.incidents.values()
        if (one.count or one.seen_s >= THRESHOLDS.node_incident_s) and record.present(one)
    ]
    return sorted(kept, key=lambda one: -one.last_unix_s)


def _table(
    record: NodeRecord, incidents: Sequence[Incident], ledger: NodeLedger, now_unix_s: float
) -> dict[str, tuple[float, float]]:
    left = decayed(1.0, now_unix_s - record.observed_unix_s, ledger.half_life_s)
    observed = {gpu: seconds * left for gpu, seconds in record.observed_gpu_s.items()}
    table = {gpu: (0.0, seconds) for gpu, seconds in observed.items()}
    for gpu in {one.gpu for one in incidents if one.gpu}:
        own = [one for one in incidents if one.gpu == gpu]
        table[gpu] = _weight(own, ledger, now_unix_s), observed.get(gpu, 0.0)
    table[_WHOLE] = _weight(incidents, ledger, now_unix_s), sum(observed.values())
    return table


def _weight(incidents: Iterable[Incident], ledger: NodeLedger, now_unix_s: float) -> float:
    by_job: dict[str, float] = {}
    for one in incidents:
        weight = decayed(one.weight, now_unix_s - one.last_unix_s, ledger.half_life_s)
        by_job[one.job] = by_job.get(one.job, 0.0) + weight
    return sum(min(_MOST_PER_JOB, weight) for weight in by_job.values())


def _totals(records: Iterable[NodeRecord], tables: Mapping[str, _Table]) -> dict[tuple[str, bool], _Sum]:
    """By kind, of whole nodes (True) and of their GPUs (False)."""
    totals: dict[tuple[str, bool], _Sum] = {}
    for record in records:
        for name, (incidents, seconds) in tables[record.node].items():
            totals.setdefault((record.kind, name == _WHOLE), _Sum()).add(incidents, seconds)
    return totals


def _lost(incidents: Iterable[Incident], ledger: NodeLedger, now_unix_s: float) -> float:
    return sum(decayed(one.lost_gpu_s, now_unix_s - one.last_unix_s, ledger.half_life_s) for one in incidents)


def _standing(
    record: NodeRecord,
    incidents: Sequence[Incident],
    table: _Table,
    totals: Mapping[tuple[str, bool], _Sum],
    *,
    lost_gpu_s: float,
) -> NodeStanding:
    blamed = {one.gpu for one in incidents if one.gpu}
    gpus = [_against(totals[record.kind, False], *table[gpu], gpu=gpu) for gpu in sorted(blamed)]
    return NodeStanding(
        node=record.node,
        kind=record.kind,
        scheduler=record.scheduler,
        whole=_against(totals[record.kind, True], *table[_WHOLE]),
        gpus=sorted(gpus, key=lambda one: -(one.suspect_ratio or 0.0)),
        incidents=incidents,
        lost_gpu_h=lost_gpu_s / _HOUR_S,
        jobs=len({one.job for one in incidents}),
    )


def _against(total: _Sum, incidents: float, observed_gpu_s: float, *, gpu: str = "") -> Standing:
    peer_s = total.observed_gpu_s - observed_gpu_s
    peer_incidents = max(0.0, total.incidents - incidents)
    # Sums of floats leave a remainder where there is no peer.
    peers = total.count - (observed_gpu_s > 0)
    compared = peers > 0 and peer_s > 0
    return Standing(
        gpu=gpu,
        incidents=incidents,
        observed_gpu_h=observed_gpu_s / _HOUR_S,
        expected=peer_incidents * observed_gpu_s / peer_s if compared else None,
        suspect_ratio=suspect_probability(incidents, observed_gpu_s, peer_incidents, peer_s)
        if compared and incidents
        else None,
        peers=peers,
    )

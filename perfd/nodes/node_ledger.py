"""The ledger of nodes: incidents and observed time of each, bounded. The caller gives the time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from perfd.nodes.incidents import Incident, decayed

_MOST_INCIDENTS = 256
"""Of a node; those that weigh least go first."""
_MOST_NODES = 20_000
"""In memory, more than the largest clusters have. Chosen."""
_MOST_GPUS = 256
"""Of a node, MIG slices included: more than any has."""
_MOST_CHARS = 500
"""Of a sentence of evidence."""


class Scheduler(StrEnum):
    """Who gives nodes to jobs."""

    SLURM = "slurm"
    KUBERNETES = "kubernetes"


@dataclass(slots=True)
class NodeRecord:
    """What is remembered of one node."""

    node: str
    kind: str = ""
    """The name of its GPUs, by which nodes are peers."""
    scheduler: Scheduler | None = None
    uuids: dict[str, str] = field(default_factory=dict)
    """Of the GPUs that are in it now, by index."""
    observed_gpu_s: dict[str, float] = field(default_factory=dict)
    """By GPU, decayed to `observed_unix_s`; time in which it served a job."""
    observed_unix_s: float = 0.0
    incidents: dict[str, Incident] = field(default_factory=dict)
    """By their keys."""

    def present(self, incident: Incident) -> bool:
        """Whether it is about what is in the node now, and not about a GPU that was taken out."""
        if not incident.gpu_uuid or not self.uuids:
            return True
        return self.uuids.get(incident.gpu) in {incident.gpu_uuid, None}


class NodeLedger:
    """Remembers nodes. Not thread-safe; it does no I/O and reads no clock."""

    def __init__(self, half_life_s: float) -> None:
        self.half_life_s = half_life_s
        self.records: dict[str, NodeRecord] = {}
        self._changed_incidents: dict[tuple[str, str], None] = {}
        self._changed_nodes: dict[str, None] = {}
        self.news = 0
        """Counts up with each incident, and when what a node is changes; not with the time that passes."""

    def describe(
        self, node: str, *, kind: str, scheduler: Scheduler | None, uuids: Mapping[str, str]
    ) -> NodeRecord | None:
        """Know what a node is; None when there are too many nodes. What is not known now stays."""
        record = self.records.get(node)
        if record is None:
            if len(self.records) >= _MOST_NODES:
                return None
            record = self.records[node] = NodeRecord(node)
        before = record.kind, record.scheduler, dict(record.uuids)
        record.kind = kind or record.kind
        record.scheduler = scheduler or record.scheduler
        record.uuids.update(uuids)
        if before != (record.kind, record.scheduler, record.uuids):
            self._changed_nodes[node] = None
            self.news += 1
        return record

    def observe(self, node: str, gpus: Mapping[str, float], now_unix_s: float) -> None:
        """Add GPU-seconds in which GPUs of a known node served a job."""
        record = self.records.get(node)
        if record is None or not gpus:
            return
        left = decayed(1.0, now_unix_s - record.observed_unix_s, self.half_life_s)
        observed = {gpu: seconds * left for gpu, seconds in record.observed_gpu_s.items()}
        for gpu, seconds in gpus.items():
            if gpu in observed or len(observed) < _MOST_GPUS:
                observed[gpu] = observed.get(gpu, 0.0) + seconds
        record.observed_gpu_s = observed
        record.observed_unix_s = max(now_unix_s, record.observed_unix_s)
        self._changed_nodes[node] = None

    def note(self, incident: Incident) -> None:
        """Add an incident of a known node; the same again adds its time, cost and count."""
        record = self.records.get(incident.node)
        if record is None:
            return
        if uuid := record.uuids.get(incident.gpu):
            incident = replace(incident, gpu_uuid=uuid)
        incident = replace(incident, evidence=incident.evidence[:_MOST_CHARS])
        known = record.incidents.get(incident.key)
        if known is not None:
            incident = replace(
                incident,
                first_unix_s=known.first_unix_s,
                last_unix_s=max(known.last_unix_s, incident.last_unix_s),
                weight=max(known.weight, incident.weight),
                seen_s=known.seen_s + incident.seen_s,
                lost_gpu_s=known.lost_gpu_s + incident.lost_gpu_s,
                count=known.count + incident.count,
            )
        elif len(record.incidents) >= _MOST_INCIDENTS:
            least = min(record.incidents.values(), key=lambda one: (one.last_unix_s, one.weight))
            del record.incidents[least.key]
        record.incidents[incident.key] = incident
        self._changed_incidents[incident.node, incident.key] = None
        self.news += 1

    def restore(self, records: Iterable[NodeRecord], incidents: Iterable[Incident]) -> None:
        """Take over what an earlier process knew."""
        for record in records:
            if len(self.records) < _MOST_NODES:
                self.records[record.node] = record
        for incident in incidents:
            record = self.records.setdefault(incident.node, NodeRecord(incident.node))
            if len(record.incidents) < _MOST_INCIDENTS:
                record.incidents[incident.key] = incident

    def changes(self) -> tuple[list[NodeRecord], list[Incident]]:
        """What changed since it was asked last, for whoever keeps it on disk."""
        nodes = [self.records[name] for name in self._changed_nodes if name in self.records]
        incidents = [
            self.records[node].incidents[key]
            for node, key in self._changed_incidents
            if node in self.records and key in self.records[node].incidents
        ]
        self._changed_nodes.clear()
        self._changed_incidents.clear()
        return nodes, incidents

    def expire(self, now_unix_s: float, after_s: float) -> None:
        """Forget incidents and nodes that are older than that."""
        for name, record in list(self.records.items()):
            record.incidents = {
                key: one for key, one in record.incidents.items() if now_unix_s - one.last_unix_s <= after_s
            }
            if not record.incidents and now_unix_s - record.observed_unix_s > after_s:
                del self.records[name]

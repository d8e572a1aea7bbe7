"""Rows of the memory of nodes in history."""

from __future__ import annotations

from perfd.aggregator.history import Statement, node_memory_row
from perfd.nodes import Drain, Incident, NodeRecord


def record_row(record: NodeRecord) -> Statement:
    """A node, without its incidents, which have rows of their own."""
    body = {
        "node": record.node,
        "kind": record.kind,
        "scheduler": record.scheduler,
        "uuids": record.uuids,
        "observed_gpu_s": record.observed_gpu_s,
        "observed_unix_s": record.observed_unix_s,
    }
    return node_memory_row(record.node, "node", "", record.observed_unix_s, body)


def incident_row(incident: Incident) -> Statement:
    """One incident."""
    return node_memory_row(incident.node, "incident", incident.key, incident.last_unix_s, incident)


def drain_row(drain: Drain) -> Statement:
    """A node that was taken out of scheduling."""
    return node_memory_row(drain.node, "drain", str(drain.unix_s), drain.unix_s, drain)

"""The subjects on which agents and aggregators publish, and names as tokens of these.

    perfd.from.CLUSTER.JOB.NODE          what an agent sends; kept by the stream
    perfd.from.CLUSTER.NUMBER/COUNT.NODE the same, for a group of aggregators that share the jobs
    perfd.to.CLUSTER.NODE.SESSION.>      what one session of it receives: acknowledgments, messages

An agent may publish `perfd.from.CLUSTER.*.NODE` and subscribe to `perfd.to.CLUSTER.NODE.>`, and nothing else.
"""

from __future__ import annotations

import hashlib
import re
from urllib.parse import quote, unquote

from perfd.errors import WireError

ALL_OF_AGENTS = "perfd.from.>"
"""The subjects of the stream."""
NO_JOB = "-"
"""In place of a job, for an agent that finds the jobs of its node itself."""
_SESSION = re.compile(r"[0-9a-f]{32}")
_BUCKET = re.compile(r"[A-Za-wyz0-9][A-Za-z0-9_-]*")
"""Cluster names usable in a bucket's name; others are written as x and hexadecimal digits."""
_TOKENS = 5
"""Tokens of an agent's subject: `perfd.from.CLUSTER.PARTITION.NODE`."""


def token(name: str) -> str:
    """A name as one token: what a token cannot hold, and `%`, becomes `%` and two hexadecimal digits."""
    # `quote` leaves a dot, which separates tokens.
    return quote(name, safe="").replace(".", "%2E")


def from_agent(cluster: str, job: str | None, node: str) -> str:
    """Where an agent publishes; `job` is its own, if it is configured."""
    return f"perfd.from.{token(cluster)}.{token(job) if job else NO_JOB}.{token(node)}"


def from_agents(cluster: str) -> str:
    """All that agents of a cluster publish."""
    return f"perfd.from.{token(cluster)}.>"


def partition_of(job: str, partitions: int) -> int:
    """The partition, from 0, that a job belongs to; the same on all machines and in all versions of perfd."""
    return int.from_bytes(hashlib.sha256(job.encode()).digest()[:8]) % partitions


def to_partition(cluster: str, partition: int, partitions: int, node: str) -> str:
    """The subject on which a node's agent publishes to a partition; jobs' subjects have no slash there."""
    return f"perfd.from.{token(cluster)}.{partition}/{partitions}.{token(node)}"


def from_partition(cluster: str, partition: int, partitions: int) -> str:
    """The subject of everything that a cluster's agents publish to a partition."""
    return f"perfd.from.{token(cluster)}.{partition}/{partitions}.*"


def to_session(cluster: str, node: str, session: str) -> str:
    """What the subjects begin with that a session of an agent listens to; raises `WireError`."""
    if not _SESSION.fullmatch(session):
        raise WireError("The name of a session must be 32 hexadecimal digits.")
    return f"perfd.to.{token(cluster)}.{token(node)}.{session}"


def lease_bucket(cluster: str) -> str:
    """The name of the key-value bucket with the partition leases of a group of aggregators."""
    simple = _BUCKET.fullmatch(cluster)
    return f"perfd-{cluster}" if simple else f"perfd-x{cluster.encode().hex()}"


def spare_bucket(cluster: str) -> str:
    """The name of the bucket with what a group's history does not take now."""
    return f"{lease_bucket(cluster)}-unstored"


def node_of(subject: str) -> str:
    """The node that published to a subject; raises `WireError` if no agent does so there."""
    tokens = subject.split(".")
    if len(tokens) != _TOKENS or not subject.startswith("perfd.from.") or not tokens[-1]:
        raise WireError(f"No agent publishes to {subject}.")
    return unquote(tokens[-1])

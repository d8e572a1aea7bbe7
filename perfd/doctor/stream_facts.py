"""What is known of the stream that an aggregator reads from NATS."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerFacts:
    """One reader of the stream, at two looks."""

    name: str
    leader: str | None
    """The server that leads it; None: none, in a cluster of servers."""
    waiting: int = 0
    """Messages that it has not delivered."""
    unstored: int = 0
    """Messages that were delivered and are not acknowledged."""
    most_unstored: int = 0
    """With so many it delivers no more; 0: no limit."""
    delivers: bool = True
    """Whether it delivered messages between the looks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamFacts:
    """A stream as its servers describe it."""

    servers: str
    name: str
    error: str = ""
    """Why NATS cannot be used; then all else is unknown."""
    exists: bool = True
    answers: bool = True
    """Whether a server answers for it: only its leader does."""
    leader: str | None = None
    behind: Sequence[str] = ()
    """Servers with a copy that is offline or not complete."""
    replicas: int = 1
    configured_replicas: int = 1
    messages: int = 0
    bytes: int = 0
    max_bytes: int = -1
    """-1: no limit."""
    loses: Sequence[str] = ()
    """Settings by which the stream drops what is not stored."""
    subjects_missing: bool = False
    """Whether what agents publish is not for this stream."""
    max_payload_bytes: int = 0
    """The largest message that the servers take."""
    needed_payload_bytes: int = 0
    """That of an agent's batch as configured by default."""
    consumers: Sequence[ConsumerFacts] = ()

"""Counters of what is read from NATS."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True, kw_only=True)
class NatsProgress:
    """How reading goes; written by the thread that reads."""

    reading: bool = False
    waiting_messages: int = 0
    """In the stream, and not read yet."""
    unsettled_messages: int = 0
    """Read, and not stored yet."""
    lag_s: float = 0.0
    """For how long the newest message that was read had been in the stream."""
    received_messages: int = 0
    refused_messages: int = 0
    interruptions: int = 0
    """How often reading ended, and began again or waits to."""

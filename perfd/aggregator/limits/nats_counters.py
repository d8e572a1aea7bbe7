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
    delivered_s: float = float("-inf")
    """When the stream delivered a message last, monotonic."""
    direct_messages: int = 0
    """Taken from agents without the stream."""
    took_directly_s: float = float("-inf")
    """When that was last, monotonic."""
    stream_problem: str | None = None
    """That the stream takes or delivers nothing for longer than an election, in a sentence."""
    _undelivered_since_s: float = float("inf")

    def take_directly(self, messages: int, now_s: float) -> None:
        """Count messages that agents sent, and that did not come through the stream."""
        self.direct_messages += messages
        if self._undelivered_since_s < self.delivered_s or self._undelivered_since_s > now_s:
            self._undelivered_since_s = now_s
        self.took_directly_s = now_s

    def undelivered_for_s(self, now_s: float) -> float:
        """For how long agents have sent messages of which none came through the stream; 0 if one did."""
        since_s = self._undelivered_since_s
        return 0.0 if self.delivered_s >= since_s else max(0.0, now_s - since_s)

"""What a gateway knows of the batches that one agent has in its spool: pure, the time is an argument."""

from __future__ import annotations

from collections.abc import Sequence

from perfd.agent.uplink import UnstoredBatches
from perfd.model import Stored, Welcome

_MOST_UNSTORED = 600
"""Batches of an agent, of ten minutes, that wait for an aggregator; with more, as in a long outage, what the
stream has leaves the spool."""


class KeptBatches:
    """The batches of one agent's spool that were published, until aggregators have stored them."""

    def __init__(self) -> None:
        self._unstored = UnstoredBatches()
        self._most_sent = 0
        self._says_stored: bool | None = None
        self.sent_before = 0
        """Up to which number an earlier stream of the agent may have sent them."""
        self.lost: dict[int, int] = {}
        """By number, how often a batch was acknowledged and not stored."""

    def begin(self, first_sequence: int) -> None:
        """A stream begins whose agent has nothing before `first_sequence`."""
        self.sent_before = self._most_sent
        self._unstored.forget(first_sequence - 1)

    def published(self, sequence: int, subjects: Sequence[str], now_s: float) -> None:
        """Note a batch that is published."""
        self._most_sent = max(self._most_sent, sequence)
        self._unstored.published(sequence, subjects, now_s)

    def welcomed(self, welcome: Welcome) -> None:
        """Note whether aggregators say what they store: those of an earlier version do not."""
        self._says_stored = welcome.says_stored or bool(self._says_stored)

    def stored(self, message: Stored) -> None:
        """Note what an aggregator stored."""
        self._unstored.stored(message.subject, message.sequences)
        self.lost = {sequence: times for sequence, times in self.lost.items() if sequence in self._unstored}

    def stored_sequence(self, acknowledged: int) -> int:
        """Up to which number the spool needs no batches; the stream has those up to `acknowledged`."""
        if self._says_stored is False or len(self._unstored) > _MOST_UNSTORED:
            self._unstored.forget(acknowledged)
        return min(acknowledged, self._unstored.stored_sequence)

    def find_lost(self, now_s: float) -> bool:
        """Whether batches are to be sent again that the stream acknowledged and no aggregator stored."""
        before = len(self.lost), sum(self.lost.values())
        while (overdue := self._unstored.next_overdue(now_s)) is not None:
            self.lost[overdue.sequence] = overdue.number
        return (len(self.lost), sum(self.lost.values())) != before

"""Which published batches no aggregator has stored yet, and which of them to publish again. No network."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

_AGAIN_AFTER_S = 30.0
"""From the publication of a batch to the next, where a later one of its subject is stored: readers store in
order, but for messages that are delivered again after 30 s."""
_NEWEST_AGAIN_AFTER_S = 60.0
"""The same of the newest batch, after which nothing shows that it is missing. Chosen."""
_OTHERS_AGAIN_AFTER_S = 120.0
"""The same where a later one of another subject is stored: the readers of its own may be away. Chosen."""
_LONGEST_S = 3600.0
"""Each wait is twice the one before, up to this. Chosen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Overdue:
    """A batch to publish again."""

    sequence: int
    subject: str
    number: int
    """How often it has been published again, this time included."""


@dataclass(slots=True)
class _Publication:
    at_s: float
    repeats: int = 0


class UnstoredBatches:
    """The batches that were published, until each of their subjects is known to have stored them."""

    def __init__(self) -> None:
        self._waiting: dict[int, dict[str, _Publication]] = {}
        """By sequence, in order."""
        self._published = 0
        self._stored: dict[str, int] = {}
        """By subject, the newest that is stored."""

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, sequence: int) -> bool:
        return sequence in self._waiting

    @property
    def stored_sequence(self) -> int:
        """Up to which all that was published is stored."""
        return next(iter(self._waiting), self._published + 1) - 1

    def published(self, sequence: int, subjects: Iterable[str], now_s: float) -> None:
        """Note a batch that was published, also once more after its connection ended."""
        known = self._waiting.get(sequence)
        if known is None and sequence <= self._published:
            # Stored, and published again because nothing was known of it.
            return
        self._published = max(self._published, sequence)
        publications = self._waiting.setdefault(sequence, {})
        for subject in subjects:
            publications.setdefault(subject, _Publication(now_s))

    def stored(self, subject: str, sequences: Iterable[int]) -> None:
        """Note what a reader stored."""
        for sequence in sequences:
            self._stored[subject] = max(sequence, self._stored.get(subject, 0))
            publications = self._waiting.get(sequence)
            if publications is not None:
                publications.pop(subject, None)
                if not publications:
                    del self._waiting[sequence]

    def forget(self, sequence: int) -> None:
        """Wait for none up to a sequence any more."""
        while self._waiting and (first := next(iter(self._waiting))) <= sequence:
            del self._waiting[first]
        self._published = max(self._published, sequence)

    def next_overdue(self, now_s: float) -> Overdue | None:
        """The oldest batch to publish again now, which then counts as published; None if there is none."""
        for sequence, publications in self._waiting.items():
            newest_s = max(one.at_s for one in publications.values())
            if now_s - newest_s < _AGAIN_AFTER_S and not any(one.repeats for one in publications.values()):
                # Those after it were published later.
                return None
            for subject, one in publications.items():
                wait_s = self._patience_s(sequence, subject)
                if wait_s is None or now_s - one.at_s < min(wait_s * 2**one.repeats, _LONGEST_S):
                    continue
                one.at_s, one.repeats = now_s, one.repeats + 1
                return Overdue(sequence=sequence, subject=subject, number=one.repeats)
        return None

    def _patience_s(self, sequence: int, subject: str) -> float | None:
        """How long after its first publication a batch is taken for lost; None while nothing shows that."""
        if self._stored.get(subject, 0) > sequence:
            return _AGAIN_AFTER_S
        if sequence == self._published:
            return _NEWEST_AGAIN_AFTER_S
        return _OTHERS_AGAIN_AFTER_S if max(self._stored.values(), default=0) > sequence else None

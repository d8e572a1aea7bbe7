"""Which batches of an agent are new, late or repeated, by their sequence numbers."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from perfd.aggregator.limits import Limits


class BatchVerdict(Enum):
    """What to do with a batch."""

    NEW = "new"
    LATE = "late"
    """Its sequence was counted as a gap before; it is stored all the same."""
    AGAIN = "again"
    """It was taken before, but history had no room for it."""
    REPEAT = "repeat"


@dataclass(slots=True, kw_only=True)
class BatchSequence:
    """How far the batches of one spool were taken, and which of them are missing."""

    last_sequence: int = 0
    """The newest batch that was taken."""
    kept_sequence: int = 0
    """The newest one up to which history has taken all over; below `last_sequence` when it had no room."""
    stored_sequence: int = 0
    """The newest one up to which all is stored: what is acknowledged."""
    refused: bool = False
    """Since the newest Hello history had no room for a batch."""
    missing: dict[int, None] = field(default_factory=dict)

    def take(self, sequence: int, limits: Limits) -> tuple[BatchVerdict, int]:
        """Judge a batch by its number, and say how many before it are missing."""
        if sequence > self.last_sequence:
            self._keep(sequence)
            first_missing, self.last_sequence = self.last_sequence + 1, sequence
            lost = sequence - first_missing
            for gap in range(max(first_missing, sequence - limits.missing_sequences), sequence):
                self.missing[gap] = None
            while len(self.missing) > limits.missing_sequences:
                del self.missing[next(iter(self.missing))]
            return BatchVerdict.NEW, lost
        if sequence in self.missing:
            del self.missing[sequence]
            return BatchVerdict.LATE, 0
        if sequence <= self.kept_sequence:
            return BatchVerdict.REPEAT, 0
        self._keep(sequence)
        return BatchVerdict.AGAIN, 0

    def refuse(self, sequence: int) -> None:
        """Have the agent send this batch and all after it again, once it reconnects: history has no room."""
        self.refused = True
        self.kept_sequence = min(self.kept_sequence, sequence - 1)

    def _keep(self, sequence: int) -> None:
        if not self.refused:
            self.kept_sequence = sequence

    def skip_to(self, sequence: int) -> None:
        """Expect none up to `sequence`: it is stored already, or will never come."""
        self.last_sequence = max(self.last_sequence, sequence)
        self.kept_sequence = max(self.kept_sequence, sequence)
        self.stored_sequence = max(self.stored_sequence, sequence)

    def begin_at(self, sequence: int) -> None:
        """Have history take this batch and those after it again, up to the newest one that it says it has.

        A number in it may be damaged, and a stream delivers in order all that is not known to be stored. What
        is stored is there once.
        """
        self.kept_sequence = min(self.kept_sequence, sequence - 1)
        self.stored_sequence = min(self.stored_sequence, sequence - 1)

    def jumps(self, sequence: int, limits: Limits) -> bool:
        """Whether a batch's number is too far ahead to be the next one of this stream."""
        return sequence - self.last_sequence > limits.sequence_jump + 1

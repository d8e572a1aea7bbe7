"""What an MFU says of a job, live or traced."""

from __future__ import annotations

from enum import StrEnum

from perfd.thresholds import THRESHOLDS


class MfuTier(StrEnum):
    """What an MFU says of a job; thresholds `mfu_low_ratio`, `mfu_good_ratio` and `mfu_excellent_ratio`."""

    TROUBLE = "trouble"
    COMMUNICATION_BOUND = "communication_bound"
    """Communication is the most frequent limit here."""
    GOOD = "good"
    EXCELLENT = "excellent"

    @property
    def word(self) -> str:
        """How it is shown: without a cause, and without a judgment that a job's headline may not share."""
        return _WORDS.get(self, self.value)

    @classmethod
    def of(cls, mfu_ratio: float) -> MfuTier:
        """The tier of an MFU, as the shipped rules record it."""
        if mfu_ratio < THRESHOLDS.mfu_low_ratio:
            return cls.TROUBLE
        if mfu_ratio < THRESHOLDS.mfu_good_ratio:
            return cls.COMMUNICATION_BOUND
        return cls.GOOD if mfu_ratio <= THRESHOLDS.mfu_excellent_ratio else cls.EXCELLENT


_WORDS = {MfuTier.TROUBLE: "low", MfuTier.COMMUNICATION_BOUND: "fair"}


def attainable_mfu(mfu_ratio: float | None, lost_ratio: float | None) -> float | None:
    """The MFU if this share of the time were not lost; None if it is unknown or not plausible.

    Losses are upper bounds: with an implausible MFU they would look certain.
    """
    if not mfu_ratio or not lost_ratio or not 0 < lost_ratio < 1:
        return None
    reached = mfu_ratio / (1 - lost_ratio)
    return reached if reached <= THRESHOLDS.mfu_implausible_ratio else None

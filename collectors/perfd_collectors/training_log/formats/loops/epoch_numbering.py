"""Numbers steps over epochs, where lines count them anew in each."""

from __future__ import annotations

import re

_REMEMBERED_EPOCHS = 1000
"""Bounds memory; a restart goes back over fewer."""
_MOST_RANKS = 1024
"""Whose prefixes on lines are remembered."""
_HEADING_CHARS = 200
"""Longest line that can be a heading; longer ones are prose."""
_HEADING = re.compile(
    r"(?:^|[\s\]>:-])(?:(?:starting|start of|beginning|begin|training|train|finished|end of) )?"
    r"epoch ?[:#=]? ?\[?([0-9]{1,6})\]?(?:(?: ?/ ?| of )[0-9]{1,6})?\]?"
    r"(?: (?:started|starts|begins))?[\s:.=*#-]{0,100}$",
    re.IGNORECASE,
)


class EpochsOfUnknownLength:
    """Steps over epochs whose lines do not say how many batches there are, or count on over the epochs."""

    def __init__(self) -> None:
        self._steps_before: dict[int, int] = {}
        self._epoch = -1
        """The newest."""
        self._batch = 0
        """Its last."""
        self._interval = 1

    def step(self, epoch: int, batch: int, batches: int | None = None) -> int:
        """The step of a batch; lines of an earlier epoch, of other ranks or after a restart, keep theirs."""
        if epoch > self._epoch:
            before = self._steps_before.get(self._epoch, 0)
            if self._steps_before and batch <= self._batch:
                before += batches or self._batch + (0 if batch else self._interval)
            self._steps_before[epoch] = before
            self._epoch, self._batch = epoch, batch
            if len(self._steps_before) > _REMEMBERED_EPOCHS:
                del self._steps_before[min(self._steps_before)]
        elif epoch == self._epoch and batch > self._batch:
            self._batch, self._interval = batch, batch - self._batch
        return self._steps_before.get(epoch, 0) + batch

    def is_late(self, epoch: int, batch: int) -> bool:
        """Whether it may be the last line of the epoch before, by another rank."""
        return epoch > self._epoch and bool(self._steps_before) and batch == self._batch


class EpochsOfSamples:
    """Steps over epochs of lines that count samples; the first line of an epoch is of its first step."""

    def __init__(self) -> None:
        self.per_step: int | None = None
        """Samples of a step; None until the first line of an epoch was read; then it stays."""
        self._first_epoch: int | None = None
        """Where reading began in the middle of a log: its first line may not have been read."""
        self._attached = False

    def attach(self) -> None:
        """Note that lines before were not read: the next one need not be the first of its epoch."""
        self._attached = True

    def step(self, epoch: int, samples: int, of: int) -> int | None:
        """The step over all epochs; None where it is not known, or the line contradicts the ones before."""
        if self._first_epoch is None and self._attached:
            self._first_epoch = epoch
        if self.per_step is None and epoch != self._first_epoch:
            self.per_step = samples
        if not self.per_step or samples % self.per_step or not samples <= of:
            return None
        return epoch * (of // self.per_step) + samples // self.per_step


class _OneRank:
    def __init__(self) -> None:
        self.epoch: int | None = None
        """By the newest heading."""
        self.epochs = EpochsOfUnknownLength()
        self.batches: tuple[int, int | None] | None = None
        """Of the newest epoch, as its first line says."""


class EpochHeadings:
    """Headings of epochs in one log, each of which may begin its steps anew."""

    def __init__(self) -> None:
        self._ranks: dict[int | None, _OneRank] = {}

    def is_heading(self, text: str, rank: int | None) -> bool:
        """Whether a line is the heading of an epoch, which is noted."""
        may_be = len(text) <= _HEADING_CHARS and "epoch" in text.lower()
        found = _HEADING.search(text) if may_be else None
        if found is None:
            return False
        if rank in self._ranks or len(self._ranks) < _MOST_RANKS:
            self._ranks.setdefault(rank, _OneRank()).epoch = int(found[1])
        return True

    def known(self, rank: int | None) -> bool:
        """Whether a heading came before."""
        return rank in self._ranks and self._ranks[rank].epoch is not None

    def step(self, rank: int | None, batch: int, batches: int | None) -> int | None:
        """The step over all epochs; None for lines that may be of another epoch, or of another loader."""
        if rank not in self._ranks:
            if len(self._ranks) >= _MOST_RANKS:
                return None
            self._ranks[rank] = _OneRank()
        one = self._ranks[rank]
        if one.epoch is None:
            return one.epochs.step(0, batch, batches)
        epoch = one.epoch + 1
        if one.epochs.is_late(epoch, batch):
            return None
        if one.batches is None or one.batches[0] != epoch:
            one.batches = (epoch, batches)
        if one.batches[1] != batches or (batches is not None and batch > batches):
            return None
        return one.epochs.step(epoch, batch, batches)

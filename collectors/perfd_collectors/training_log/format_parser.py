"""The interface of format parsers, and parsing that formats share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from perfd.model import TrainingStep
from perfd_collectors.nccl.debug_log import DebugLog
from perfd_collectors.training_log.bar_log import BarLog
from perfd_collectors.training_log.log_lines import LogLine
from perfd_collectors.training_log.parser_output import ParserOutput
from perfd_collectors.training_log.step_log import StepLog


@dataclass(frozen=True, slots=True, kw_only=True)
class LogContext:
    """State shared by the parsers of all logs of a job."""

    out: ParserOutput
    steps: StepLog
    bars: BarLog = field(default_factory=BarLog)
    nccl: DebugLog = field(default_factory=DebugLog)


class FormatParser(ABC):
    """Parses one family of lines. It is called with lines that contain one of its keywords, in order."""

    keywords: Sequence[bytes]
    """Lines without any of these are not passed to the parser, unless it is `in_block`."""

    def __init__(self, job: LogContext) -> None:
        self._out = job.out
        self._steps = job.steps

    @property
    def in_block(self) -> bool:
        """Whether the parser is inside a block, so that it needs the next line regardless of keywords."""
        return False

    @abstractmethod
    def parse(self, line: LogLine) -> bool:
        """Parse a line; returns False when it is not of this format."""

    def settle(self) -> None:  # noqa: B027  (most formats have no blocks)
        """Emit an open block, which is complete because no line came for a while."""

    def finish(self) -> None:  # noqa: B027
        """Emit everything pending: the log has ended."""


_MAX_KEY_CHARS = 80
"""Longer keys are not a trainer's."""


def fields(text: str, *, complete: bool) -> list[tuple[str, str]]:
    """The `key: value` (or `key=value`) pairs between bars.

    The part after the last bar ends only with the line, and is skipped unless
    `complete`.
    """
    pieces = text.split("|")
    if not complete:
        pieces.pop()
    pairs = []
    for piece in pieces:
        colon, equals = piece.find(":"), piece.find("=")
        cut = min((at for at in (colon, equals) if at > 0), default=-1)
        key = piece[:cut].strip()
        if cut > 0 and is_plain_key(key):
            pairs.append((key, piece[cut + 1 :].strip()))
    return pairs


def is_plain_key(key: str) -> bool:
    """Whether a key is plausible, and not the result of two merged lines."""
    return 0 < len(key) <= _MAX_KEY_CHARS and key.isascii() and key.isprintable() and not key[0].isdigit()


def training_step(
    job: str,
    step: int,
    values: Mapping[str, float],
    losses: Mapping[str, float],
    extras: Mapping[str, float],
) -> TrainingStep:
    """A `TrainingStep` from numbers by the names of its fields; other names are ignored."""
    return TrainingStep(
        job=job,
        step=step,
        step_time_s=values.get("step_time_s"),
        flops_per_s_per_gpu=values.get("flops_per_s_per_gpu"),
        tokens_per_s=values.get("tokens_per_s"),
        samples_per_s=values.get("samples_per_s"),
        global_batch_size=_count(values.get("global_batch_size")),
        consumed_samples=_count(values.get("consumed_samples")),
        consumed_tokens=_count(values.get("consumed_tokens")),
        learning_rate=values.get("learning_rate"),
        losses=losses,
        grad_norm=values.get("grad_norm"),
        loss_scale=values.get("loss_scale"),
        skipped_steps=_count(values.get("skipped_steps")),
        nan_steps=_count(values.get("nan_steps")),
        energy_per_gpu_j=values.get("energy_per_gpu_j"),
        power_per_gpu_w=values.get("power_per_gpu_w"),
        mfu_ratio=values.get("mfu_ratio"),
        extras=extras,
    )


def _count(value: float | None) -> int | None:
    return int(value) if value is not None and value >= 0 and value == int(value) else None

"""What a parser of one format is, and the pieces that formats share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from perfd.model import TrainingStep
from perfd_collectors.nccl.debug_log import DebugLog
from perfd_collectors.training_log.line_buffer import LogLine
from perfd_collectors.training_log.parser_output import ParserOutput
from perfd_collectors.training_log.step_log import StepLog


@dataclass(frozen=True, slots=True, kw_only=True)
class LogContext:
    """What the parsers of all logs of one job share."""

    out: ParserOutput
    steps: StepLog
    nccl: DebugLog = field(default_factory=DebugLog)


class FormatParser(Protocol):
    """Understands one family of lines. It is called with lines that hold one of its keywords, in order."""

    keywords: Sequence[bytes]
    """A line without any of these is never for this parser, unless it is `hungry`."""

    @property
    def hungry(self) -> bool:
        """Whether the next line may be for this parser whatever it holds: it is inside a block."""

    def parse(self, line: LogLine) -> bool:
        """Take in a line; False when it means nothing to this parser."""

    def settle(self) -> None:
        """Take in that nothing came for a while: put out a block that has all its lines by now."""

    def finish(self) -> None:
        """Take in that the log has ended: put out what waited for a next line."""


def fields(text: str, *, complete: bool) -> list[tuple[str, str]]:
    """The `key: value` (or `key=value`) pairs between bars.

    What follows the last bar has no terminator but the line's end, so it is left
    out unless `complete` says that this counts.
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
    """Whether a key can be one that a trainer printed, and is not two lines run together."""
    return 0 < len(key) <= 80 and key.isascii() and key.isprintable() and not key[0].isdigit()


def training_step(
    job: str,
    step: int,
    values: Mapping[str, float],
    losses: Mapping[str, float],
    extras: Mapping[str, float],
) -> TrainingStep:
    """A progress line out of numbers by the names of `TrainingStep`; other names are left out."""
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

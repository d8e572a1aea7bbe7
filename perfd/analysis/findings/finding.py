"""One finding: what limits a job, the evidence, the culprits, the gain without it, and the advice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from perfd.analysis.findings.finding_kind import Kind


@dataclass(frozen=True, slots=True, kw_only=True)
class Culprit:
    """What causes a finding: a `rank` or `stage` by number, a `gpu` as `node/index`, a `group` by name."""

    kind: str
    id: int | str

    def __str__(self) -> str:
        return f"{self.kind} {self.id}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that costs a job time, or that keeps its numbers from being complete."""

    kind: Kind
    confidence: float
    """0 to 1, an order and no measured probability: 0.9 two independent sources agree, 0.8 measured directly,
    0.6 measured in part, by bounds or from a model, 0.4 expected or indirect, 0 unknown."""
    culprits: Sequence[Culprit] = ()
    """Empty when all ranks are affected alike, or the cause cannot be located."""
    evidence: Sequence[str] = ()
    """Sentences with numbers and their source."""
    advice: str = ""
    """What to do about it; empty when there is nothing to do."""
    gain_ratio: float | None = None
    """The share of a step (of the window, in a trace) that the job would gain at most without it; None when
    unknown."""
    effects: Sequence[Kind] = ()
    """Kinds of other findings of the same job that this one explains."""

    @property
    def culprit_names(self) -> str:
        """`rank 3, rank 7`; empty without culprits."""
        return ", ".join(map(str, self.culprits))

    @property
    def headline(self) -> str:
        """What limits the job and who causes it, without a full stop."""
        return f"{self.kind.sentence}: {self.culprit_names}" if self.culprits else self.kind.sentence


def finding_json(finding: Finding) -> dict[str, Any]:
    """A finding as every JSON document of perfd has it: its fields, and its kind in words."""
    plain: dict[str, Any] = msgspec.to_builtins(finding)
    kind = finding.kind
    return {"kind": plain.pop("kind"), "name": kind.short_name, "sentence": kind.sentence, **plain}

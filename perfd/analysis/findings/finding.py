"""One finding: what limits a job, the evidence, the culprits, the gain without it, and the advice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from perfd.analysis.findings.finding_kind import Kind
from perfd.formatting import percent

_CERTAINTIES = ((0.8, "measured"), (0.5, "likely"), (0.0, "possible"))
"""From which confidence on, and the word that is shown: the number is an order of kinds of evidence only."""
_NOTHING_LEFT = 0.005
"""Of a step: what rounds to nothing beside samples and medians is not called unexplained."""
_LONGER = "Steps take longer than before, and perfd can't yet tell why"
"""The sentence of an unknown cause that began at a known step."""
LONGER_STEPS = "longer steps, cause unknown"
"""What tables and lists call that."""


def certainty_of(confidence: float) -> str:
    """`measured`, `likely` or `possible`; empty for 0, the unknown."""
    if confidence <= 0:
        return ""
    return next(word for least, word in _CERTAINTIES if confidence >= least)


@dataclass(frozen=True, slots=True, kw_only=True)
class Culprit:
    """What causes a finding: a `rank`, `stage`, `tensor rank`, `broadcast root`, `gpu`, `node` or `group`.

    A GPU is `node/index`.
    """

    kind: str
    id: int | str

    def __str__(self) -> str:
        return f"{self.kind} {self.id}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """A symptom that a finding explains: it is not a separate problem."""

    kind: Kind
    culprits: Sequence[Culprit] = ()
    evidence: Sequence[str] = ()
    gain_ratio: float | None = None
    """The share of a step that the symptom takes; None when unknown."""
    explained_ratio: float | None = None
    """As much of it the finding explains at most; None when unknown."""

    @property
    def unexplained_ratio(self) -> float | None:
        """What is left of it; None when unknown."""
        if self.gain_ratio is None or self.explained_ratio is None:
            return None
        left = self.gain_ratio - self.explained_ratio
        return left if left >= _NOTHING_LEFT else 0.0

    @property
    def summary(self) -> str:
        """`host: 33.5% of 40.0%; 6.5% more is unexplained`, with what is known."""
        names = ", ".join(map(str, self.culprits))
        name = f"{self.kind.short_name} ({names})" if names else self.kind.short_name
        left = self.unexplained_ratio
        if not left:
            return name if self.gain_ratio is None else f"{name}: {percent(self.gain_ratio)}"
        return (
            f"{name}: {percent(self.explained_ratio)} of {percent(self.gain_ratio)};"
            f" {percent(left)} more is unexplained"
        )


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
    waiting_ratio: float | None = None
    """How much of `gain_ratio` waits for other ranks beyond what the job's design requires, so that another
    finding may explain it; None when all of it may be that."""
    step_s: float | None = None
    """How long a step takes with it, of which `gain_ratio` is a share; None for the job's usual step."""
    ranks: Sequence[int] = ()
    """Ranks that it concerns if its culprits are not ranks; empty for all."""
    longer_for_s: float | None = None
    """How long steps have been longer, if longer steps are evidence for the finding or its effects."""
    since_step: int | None = None
    """The first of these steps, if known."""
    may_be_over: bool = False
    """Whether the newest rounds no longer find it."""
    tentative: bool = False
    """Whether one round is too little evidence for it."""
    effects: Sequence[Effect] = ()
    """Symptoms of the same job that this one explains, the largest first."""

    @property
    def before_s(self) -> float:
        """How long a step takes without it; 0 where that is not known."""
        return (self.step_s or 0.0) * (1 - (self.gain_ratio or 0.0))

    @property
    def concerned_ranks(self) -> Sequence[int]:
        """The ranks of it, by its culprits if these are ranks; empty for all."""
        named = [culprit.id for culprit in self.culprits if culprit.kind == "rank"]
        return [rank for rank in named if isinstance(rank, int)] or self.ranks

    @property
    def culprit_ranks(self) -> Sequence[int]:
        """Ranks that are named, or that are on a node that is."""
        on_node = any(culprit.kind == "node" for culprit in self.culprits)
        named = [int(culprit.id) for culprit in self.culprits if culprit.kind == "rank"]
        return [*named, *self.ranks] if on_node else named

    @property
    def culprit_names(self) -> str:
        """`rank 3, rank 7`; empty without culprits."""
        return ", ".join(map(str, self.culprits))

    @property
    def certainty(self) -> str:
        """`measured`, `likely` or `possible`; empty for what is unknown."""
        return "" if self.kind is Kind.UNKNOWN else certainty_of(self.confidence)

    @property
    def certainty_words(self) -> str:
        """The same, and whether it may be over."""
        return ", ".join(filter(None, (self.certainty, "may be over" if self.may_be_over else "")))

    @property
    def is_unexplained_growth(self) -> bool:
        """Whether steps are longer since a known step, and nothing says why."""
        return self.kind is Kind.UNKNOWN and self.since_step is not None

    @property
    def short_name(self) -> str:
        """What tables and lists call it."""
        return LONGER_STEPS if self.is_unexplained_growth else self.kind.short_name

    @property
    def sentence(self) -> str:
        """What limits the job, or what may, without culprits and without a full stop."""
        if self.is_unexplained_growth:
            return _LONGER
        return self.kind.possible_sentence if self.certainty == "possible" else self.kind.sentence

    @property
    def headline(self) -> str:
        """What limits the job and who causes it, without a full stop."""
        return f"{self.sentence}: {self.culprit_names}" if self.culprits else self.sentence


def finding_json(finding: Finding) -> dict[str, Any]:
    """A finding as every JSON document of perfd has it: its fields, and its kind in words."""
    plain: dict[str, Any] = msgspec.to_builtins(finding)
    del plain["tentative"]
    for effect, found in zip(plain["effects"], finding.effects, strict=True):
        effect |= {"name": found.kind.short_name, "summary": found.summary}
    words = {"name": finding.short_name, "sentence": finding.sentence, "certainty": finding.certainty}
    return {"kind": plain.pop("kind"), **words, **plain}

"""What a reader of a trace's numbers must know besides, each sentence once."""

from __future__ import annotations

from perfd.analysis.findings import Finding, Kind
from perfd.trace.diagnosis import TraceAnalysis, notes

_COMPUTATION = frozenset({Kind.NONE, Kind.COMPUTE_BOUND, Kind.MEMORY_BOUND})


def notes_of(analysis: TraceAnalysis) -> list[str]:
    """Sentences with the ranks that they are of, where that is not all; then what could not be matched."""
    by_note: dict[str, list[int]] = {}
    for rank in analysis.ranks:
        for note in notes(rank):
            by_note.setdefault(note, []).append(rank.rank)
    whole = len(analysis.ranks)
    lines = [
        note if len(ranks) == whole else f"Rank {', '.join(map(str, ranks))}: {note}"
        for note, ranks in by_note.items()
    ]
    unmatched = analysis.collectives.unmatched
    if unmatched and whole == 1:
        return [
            *lines,
            "Transfer and waiting are not separated: that takes the traces of all ranks.",
        ]
    return [*lines, *(f"Not matched across ranks: {sentence}" for sentence in unmatched)]


def largest_part(found: Finding) -> str:
    """What takes most of a window whose headline names something else."""
    name = "computation" if found.kind in _COMPUTATION else found.kind.short_name
    return f"Largest part of the window: {name}. What limits the job is in the headline."

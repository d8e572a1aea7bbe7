"""Recordings as they would be if something were missing or wrong: whether any look blames a healthy rank.

    python -m benchmarks.headlines.altered FOLDER ... [--only NAME ...] [--alteration NAME ...]

Each recording of the folders is altered in each way of `ALTERATIONS`, written with perfd's own writer, played
and looked at each second. The exit code is 0 if no rank is blamed that the truth beside it does not blame.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.headlines.__main__ import recordings
from benchmarks.headlines.alterations import OF_WHOLE, RESTARTED, Alteration, pieces, write
from benchmarks.headlines.alterations_of_agents import OF_AGENTS
from benchmarks.headlines.looks import Watched, must_be_named, watch
from benchmarks.headlines.truth import Truth, truth_of

ALTERATIONS: Mapping[str, Alteration] = {**OF_WHOLE, **OF_AGENTS}


def _healthy(watched: Watched, truth: Truth) -> frozenset[int]:
    """Ranks blamed that have no fault at all: after a restart, phases are elsewhere."""
    faulty = truth.ranks | truth.hidden_ranks
    faulty = faulty.union(*(phase.ranks for phase in truth.phases))
    return frozenset().union(*(look.blamed for look in watched.looks)) - faulty


def judged(recording: Path, name: str, alteration: str, scratch: Path) -> tuple[Watched, frozenset[int]]:
    """What is said of it, and the ranks that are blamed wrongly; `scratch` is an empty folder."""
    write(ALTERATIONS[alteration](pieces(recording)), scratch / "recording", name)
    truth = truth_of(recording)
    watched = watch(scratch / "recording", name, truth)
    if truth is None:
        return watched, frozenset()
    return watched, _healthy(watched, truth) if alteration == RESTARTED else watched.false_blame


def _line(watched: Watched, alteration: str, wrongly: frozenset[int]) -> str:
    words = [f"{watched.name}, {alteration}: {len(watched.runs)} headlines"]
    due = [one for one in watched.of_phases if must_be_named(one.phase)]
    if due and alteration != RESTARTED:
        named = sum(one.named_after_s is not None for one in due)
        words.append(f"{named} of {len(due)} faults of 10% and more named")
    if wrongly:
        words.append(f"FALSE BLAME: rank {', '.join(map(str, sorted(wrongly)))}")
    words += [f"{sorted(one.wrongly)} in {one.phase.fault}" for one in watched.of_phases if one.wrongly]
    return "; ".join(words)


def main(argv: Sequence[str] | None = None) -> int:
    """Alter, watch and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--only", action="append", default=[], metavar="NAME")
    parser.add_argument("--alteration", action="append", choices=sorted(ALTERATIONS), default=[])
    args = parser.parse_args(argv)
    blaming = right = seen = 0
    for name, path in recordings(args.folders, args.only):
        for alteration in args.alteration or ALTERATIONS:
            with tempfile.TemporaryDirectory() as scratch:
                watched, wrongly = judged(path, name, alteration, Path(scratch))
            seen += 1
            blaming += bool(wrongly)
            right += bool(watched.right)
            print(_line(watched, alteration, wrongly), flush=True)
    if not seen:
        parser.error("no recording has such a name in these folders")
    print(f"{right} of {seen} altered recordings right, {blaming} with false blame")
    return 1 if blaming else 0


if __name__ == "__main__":
    raise SystemExit(main())

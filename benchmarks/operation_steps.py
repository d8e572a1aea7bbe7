"""Compares steps found from NCCL operations alone with what recorded jobs measured themselves.

    python -m benchmarks.operation_steps [FOLDER ...]

FOLDER holds recordings (default: benchmarks/gpu), of which only the NCCL records are read. The truth is the
first available of: CUDA events of each step (`truth/truth-gpu-rank0.json`, `times.json`), the lines of the
log, the loop's own time of each step (`truth.json`). Prints a line per recording: the last step found and
the true one, the source of the truth, and by how much their step times differ. Then the CPU time of the
search per second of a job.

Without start times of operations, a row covers 3 s and ends anywhere in a step, so the last one ends up to
3 s before the job, and differences within a row are hidden: their means are compared, and they are counted
separately.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import fmean, median
from time import process_time

from perfd_collectors.training_log.log_document import LogDocument

from perfd.aggregator.operations import OperationSteps
from perfd.clock import VirtualClock
from perfd.collector import Settings
from perfd.model import CollectiveTimes, TrainingStep, several_steps
from perfd.recording.recording_format import RECORDS_KIND, Recording, open_recording
from perfd.recording.records_stream import RecordsStream, plain_file

DEFAULT = Path(__file__).parent / "gpu"
_TICK_S = 0.25
_FEWEST_LINES = 10
_WITHIN = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class Truth:
    """What a job measured itself."""

    source: str
    step_s: Mapping[int, float]
    """By step."""
    killed: bool = False
    """Whether the job ended within one more step, whose operations may have run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The rows of one recording, without replaced ones."""

    rows: Sequence[TrainingStep]
    exact: bool
    doubt: str | None
    """What its steps may be instead."""

    def beside(self, truth: Truth) -> list[tuple[float, float]]:
        """The time of each step and the true one, both as means of the steps that share its row."""
        pairs: list[tuple[float, float]] = []
        for row in self.rows:
            steps = [row.step - back for back in range(row.steps_covered)]
            true_s = [truth.step_s[step] for step in steps if step in truth.step_s]
            if row.step_time_s is not None and true_s:
                pairs += [(row.step_time_s, fmean(true_s))] * len(true_s)
        return pairs


def collectives(recording: Recording) -> Iterator[CollectiveTimes]:
    """The operations of each node, in the order in which the aggregator received them."""
    with tempfile.TemporaryDirectory() as scratch:
        for stream in recording.manifest.streams:
            if stream.kind != RECORDS_KIND:
                continue
            path, _ = plain_file(recording, stream, Path(scratch) / stream.node)
            clock = VirtualClock()
            played = RecordsStream(path, Settings(node=stream.node, job=recording.name, clock=clock))
            start_ns, end_ns = played.span_unix_ns() or (0, 0)
            clock.advance_to_unix_ns(start_ns)
            while clock.unix_ns() <= end_ns + _TICK_S * 1e9:
                yield from (one for one in played.collect() if isinstance(one, CollectiveTimes))
                clock.advance(_TICK_S)
            played.close()


def steps_of(records: Iterator[CollectiveTimes]) -> Found:
    """The steps found from operations."""
    steps = OperationSteps()
    rows: list[TrainingStep] = []
    for times in records:
        found = steps.put(times)
        rows = [*([] if found.anew else rows), *found.rows]
    found = steps.end("job")
    rows = [*([] if found.anew else rows), *found.rows]
    pace = steps.pace
    doubt = None if pace is None else pace.doubt
    return Found(rows=rows, exact=pace is not None and pace.exact, doubt=doubt and several_steps(doubt))


def core_ratio(records: Sequence[CollectiveTimes]) -> float:
    """CPU time of the search per second of the job; the least of three runs."""
    lasted_s = []
    for _ in range(3):
        began_s = process_time()
        steps_of(iter(records))
        lasted_s.append(process_time() - began_s)
    span_ns = max(one.end_unix_ns for one in records) - min(one.start_unix_ns for one in records)
    return min(lasted_s) / (span_ns / 1e9)


def truth_of(recording: Recording) -> Truth | None:
    """The job's own measurements, from files next to the recording or from its log; None without any."""
    beside = recording.directory.parent
    for path, key in (
        (beside / "truth" / "truth-gpu-rank0.json", "steps_s"),
        (beside / "times.json", "seconds"),
    ):
        if path.is_file():
            lasted = json.loads(path.read_text())[key]
            return Truth(source="CUDA events", step_s=dict(enumerate(lasted, 1)))
    log = LogDocument()
    for stream in recording.manifest.streams:
        if stream.kind == "training-log" and not stream.compressed:
            with recording.path_of(stream).open("rb") as lines:
                log.read(lines)
    timed = [(one.step, one.step_time_s) for one in log.steps if one.step_time_s and one.steps_covered == 1]
    if len(timed) >= _FEWEST_LINES and all(
        after == before + 1 for (before, _), (after, _) in pairwise(timed)
    ):
        return Truth(source="log", step_s=dict(timed))
    if (beside / "truth.json").is_file():
        document = json.loads((beside / "truth.json").read_text())
        steps = dict(enumerate(document["steps_s"], 1))
        return Truth(source="loop", step_s=steps, killed=document.get("killed", False))
    return None


def error_ratio(found: Found, truth: Truth, *, exact: bool) -> float:
    """Found over true step times of the steps in both, less 1: of medians, or of means unless `exact`."""
    usual = median if exact else fmean
    found_s, true_s = zip(*found.beside(truth), strict=True)
    return usual(found_s) / usual(true_s) - 1


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table; the exit code is 0."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folders", nargs="*", type=Path, default=[DEFAULT])
    busy: list[float] = []
    counts = {True: [0, 0, 0, 0], False: [0, 0, 0, 0]}
    for folder in parser.parse_args(arguments).folders:
        for manifest in sorted(folder.rglob("recording.json")):
            recording = open_recording(manifest.parent)
            records = list(collectives(recording))
            if not records:
                continue
            name, truth, found = "/".join(manifest.parts[-3:-1]), truth_of(recording), steps_of(iter(records))
            busy.append(core_ratio(records))
            starts = any(one.start_increments_us for one in records)
            counts[starts][0] += 1
            if not found.rows:
                print(f"{name:60} none")
                continue
            counts[starts][1] += 1
            newest, sure = found.rows[-1].step, f", {found.doubt}" if found.doubt else ""
            if truth is None or not any(found.beside(truth)):
                print(f"{name:60} {newest}{sure}")
                continue
            last, error = max(truth.step_s), error_ratio(found, truth, exact=starts)
            # Short steps share a row, and the last ones may not fill one.
            counts[starts][2] += last - found.rows[-1].steps_covered < newest <= last + truth.killed
            counts[starts][3] += abs(error) <= _WITHIN
            usual = "median" if starts else "mean"
            print(f"{name:60} {newest} of {last} ({truth.source}), {usual} {error:+.2%}{sure}", flush=True)
    for starts, (of_all, shown, exact, close) in counts.items():
        print(
            f"{'with' if starts else 'without'} start times: {of_all} recordings, steps in {shown},"
            f" count exact in {exact}, step time within {_WITHIN:.0%} in {close}"
        )
    if busy:
        print(f"CPU: median {median(busy):.2%} of a core per job, at most {max(busy):.2%}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

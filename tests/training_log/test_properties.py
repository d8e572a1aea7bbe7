"""What holds for any log, however it was damaged: nothing raises, and no value is invented."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from fractions import Fraction
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from perfd_collectors.training_log.log_parser import LogParser, new_job
from perfd_collectors.training_log.timestamps import TimeZoneGuess
from training_log.logs import values_of

from perfd.model import Record, StepPhases, TrainingStep
from tests.support.examples import examples
from tests.support.whole_logs import parse_log

FIXTURES = Path(__file__).parents[1] / "fixtures" / "training_log"
LOGS = {path.stem: path.read_bytes() for path in sorted(FIXTURES.glob("*.log"))}
names = st.sampled_from(sorted(LOGS))

_NOT_PRINTED = {"steps_covered", "warmup", "time_unix_ns"}
"""What follows from the order of lines, not from a line."""
_COUNTED_FROM_WHERE_READING_BEGAN = ("allennlp", "bars-in-bars", "epoch-headings")
"""Their bars or steps begin anew with each epoch, and none says how many came before."""


def said(records: Sequence[Record]) -> set[tuple[object, ...]]:
    return {value for value in values_of(records) if not _NOT_PRINTED & set(value)}


def said_on_the_way(data: bytes) -> set[tuple[object, ...]]:
    """Every value that a reader hears who listens after each line: descriptions grow."""
    job = new_job("default", TimeZoneGuess(0))
    parser = LogParser(job)
    records: list[Record] = []
    for line in data.splitlines(keepends=True):
        parser.feed(line)
        records += job.out.take(0)
    parser.finish()
    return said([*records, *job.out.take(0)])


@cache
def whole(name: str) -> set[tuple[object, ...]]:
    return said_on_the_way(LOGS[name])


_OF_THE_LAST_LINE = ("slime",)
"""Logs whose rounds keep the values of the last update line, which may be any line beside another log."""
_VALIDATED = {"allennlp": re.compile(rb"\bloss: ([\d.]+)")}
"""Validation bars, marked as such by the line before only: next to another log they look like training."""


@cache
def printed_by_lines(name: str) -> set[tuple[object, ...]]:
    """Every value in the log, including lines that a later one in the same round replaces."""
    known = printed(whole(name))
    if name in _OF_THE_LAST_LINE:
        lines = LOGS[name].splitlines(keepends=True)
        for left_out in range(len(lines)):
            known |= printed(said(parse_log(b"".join(lines[:left_out] + lines[left_out + 1 :]))))
    losses = _VALIDATED[name].findall(LOGS[name]) if name in _VALIDATED else []
    return known | {("TrainingStep", "losses", "loss", float(loss)) for loss in losses}


@pytest.mark.parametrize("name", LOGS)
def test_a_whole_log_says_the_same_at_once_and_line_by_line(name: str) -> None:
    assert said(parse_log(LOGS[name])) <= whole(name)


@settings(max_examples=examples(400), deadline=None)
@given(name=names, data=st.data())
def test_a_cut_log_never_invents_a_value(name: str, data: st.DataObject) -> None:
    cut = data.draw(st.integers(0, len(LOGS[name])))

    assert said(parse_log(LOGS[name][:cut])) <= whole(name)


def check_cuts(name: str, *, one_in: int) -> None:
    """Of the cuts in the last lines, one in so many."""
    log = LOGS[name]
    for cut in range(max(0, len(log) - 400), len(log), one_in):
        assert said(parse_log(log[:cut])) <= whole(name), log[:cut][-80:]


@pytest.mark.parametrize("name", LOGS)
def test_a_cut_of_the_last_lines_invents_no_value(name: str) -> None:
    check_cuts(name, one_in=16)


@pytest.mark.slow
@pytest.mark.parametrize("name", LOGS)
def test_no_cut_of_the_last_lines_invents_a_value(name: str) -> None:
    check_cuts(name, one_in=1)


def test_a_step_of_an_epoch_is_unknown_until_an_epoch_begins() -> None:
    log = LOGS["nemo-rl"]
    parser = LogParser(job := new_job("default", TimeZoneGuess(0)))
    parser.attach()
    parser.feed(log[log.index(b"= Step 2/3") :])
    parser.finish()

    steps = [record.step for record in job.out.take(0) if isinstance(record, TrainingStep)]
    assert steps == [4, 5, 6]


@settings(max_examples=examples(200), deadline=None)
@given(name=names, data=st.data())
def test_a_log_read_from_its_middle_never_invents_a_step(name: str, data: st.DataObject) -> None:
    log = LOGS[name]
    start = data.draw(st.integers(0, len(log)))
    job = new_job("default", TimeZoneGuess(0))
    parser = LogParser(job)
    parser.attach()
    parser.gap()
    parser.feed(log[start:])
    parser.finish()

    steps = [record for record in job.out.take(0) if isinstance(record, TrainingStep)]

    if not name.startswith(("hf-trainer", "lightning-tqdm", *_COUNTED_FROM_WHERE_READING_BEGAN)):
        # Not lines without a step, nor bars that are drawn twice.
        assert said(steps) <= whole(name)


@settings(max_examples=examples(200), deadline=None)
@given(name=names, data=st.data())
def test_a_log_in_pieces_says_the_same_as_the_whole(name: str, data: st.DataObject) -> None:
    log = LOGS[name]
    cuts = sorted(data.draw(st.lists(st.integers(0, len(log)), max_size=12)))
    job = new_job("default", TimeZoneGuess(0))
    parser = LogParser(job)
    for start, end in zip([0, *cuts], [*cuts, len(log)], strict=True):
        parser.feed(log[start:end])
    parser.finish()

    assert list(job.out.take(0)) == list(parse_log(log))


garbage = st.binary(min_size=1, max_size=20).map(
    # What can be part of a number, of a word or of a line's end is not garbage but another log.
    lambda data: bytes(byte for byte in data if byte >= 0x80 or (byte < 0x20 and byte not in b"\n\r"))
)


@pytest.mark.parametrize(
    ("name", "at", "junk"),
    [
        ("nemo-1-progress-bar", 0, b"\x00"),
        ("nemo-1-progress-bar", 1, b"\t"),
        ("nemo-1-progress-bar", 87, b"\t"),
        ("lightning-tqdm", 1615, b"\x00"),
        ("lightning-tqdm", 1615, "\N{NO-BREAK SPACE}".encode()),
    ],
)
def test_a_damaged_bar_invents_neither_steps_nor_their_number(name: str, at: int, junk: bytes) -> None:
    log = LOGS[name]

    damaged = parse_log(log[:at] + junk + log[at:])

    found = [record for record in damaged if not _counts_steps(name, record)]
    assert said(found) <= whole(name) | _without_a_neighbour(name, log, at)


@settings(max_examples=examples(400), deadline=None)
@given(name=names, junk=garbage, data=st.data())
def test_garbage_anywhere_never_invents_a_value(name: str, junk: bytes, data: st.DataObject) -> None:
    log = LOGS[name]
    at = data.draw(st.integers(0, len(log)))

    steps = [record for record in parse_log(log[:at] + junk + log[at:]) if not _counts_steps(name, record)]

    assert said(steps) <= whole(name) | _without_a_neighbour(name, log, at) | _total_of_bar(name, log)


def test_the_steps_of_an_epoch_are_not_those_of_the_job_where_its_name_is_damaged() -> None:
    damaged = parse_log(b"x" + LOGS["epoch-loop"])

    assert said(damaged) <= whole("epoch-loop")


def test_a_bar_that_is_not_cleared_gives_no_number_of_steps_but_its_own() -> None:
    name = "hf-trainer-5-bars-at-the-end"
    damaged = parse_log(LOGS[name][:4548] + b"\x00" + LOGS[name][4548:])

    found = [record for record in damaged if not _counts_steps(name, record)]
    assert said(found) - whole(name) == _total_of_bar(name, LOGS[name])


def _counts_steps(name: str, record: Record) -> bool:
    """A lost line gives its place to the next one: a dict to that of the bar, a bar to one with its step."""
    return (
        name.startswith(("hf-trainer", "lightning-tqdm", "openrlhf"))
        and getattr(record, "step", None) is not None
    )


def _total_of_bar(name: str, log: bytes) -> set[tuple[object, ...]]:
    """What the Trainer's bar prints as its end: it counts when what cleared the bar is damaged."""
    totals = {int(total) for total in re.findall(rb"\| \d+/(\d+) \[", log)}
    if not name.startswith("hf-trainer") or len(totals) != 1:
        return set()
    return {("JobDescription", None, "train_steps", *totals)}


def _without_a_neighbour(name: str, log: bytes, at: int) -> set[tuple[object, ...]]:
    """Values of the log without the line that garbage damaged: then the line was simply not there."""
    start = log.rfind(b"\n", 0, at) + 1
    end = log.find(b"\n", at) + 1 or len(log)
    return said_on_the_way(log[:start] + log[end:])


@settings(max_examples=examples(200), deadline=None)
@given(st.binary(max_size=4000))
def test_any_bytes_are_read(data: bytes) -> None:
    parse_log(data)


@settings(max_examples=examples(200), deadline=None)
@given(name=names, data=st.data())
def test_bytes_changed_at_random_are_read(name: str, data: st.DataObject) -> None:
    log = bytearray(LOGS[name])
    for at, value in data.draw(
        st.lists(st.tuples(st.integers(0, len(log) - 1), st.integers(0, 255)), max_size=30)
    ):
        log[at] = value

    parse_log(bytes(log))


@settings(max_examples=examples(200), deadline=None)
@given(first=names, second=names, data=st.data())
def test_interleaving_two_logs_never_invents_a_printed_value(
    first: str, second: str, data: st.DataObject
) -> None:
    lines = [LOGS[name].splitlines(keepends=True) for name in (first, second)]
    mixed = []
    while any(lines):
        which = data.draw(st.sampled_from([index for index in (0, 1) if lines[index]]))
        mixed.append(lines[which].pop(0))

    records = parse_log(b"".join(mixed))

    known = printed_by_lines(first) | printed_by_lines(second)
    steps = [record for record in records if isinstance(record, TrainingStep)]
    timers = [record for record in records if isinstance(record, StepPhases)]
    assert all(is_multiple(value, known) for value in printed(said(timers)))
    if not any(name.startswith("hf-trainer") for name in (first, second)):
        assert printed(said(steps)) <= known


_DERIVED = {"tokens_per_s", "samples_per_s", "step_time_s"}
"""May follow from a line and a description that are not of one job."""


def is_multiple(value: tuple[object, ...], known: set[tuple[object, ...]]) -> bool:
    """Whether a time is a printed one of that name, by the steps of an interval over those that it covers.

    Timers are mended so by the line that they come with, and here that may be the other job's.
    """
    *name, seconds = value
    if not isinstance(seconds, float):
        return value in known
    factors = [
        seconds / reported
        for *other, reported in known
        if other == name and isinstance(reported, float) and reported
    ]
    nearest = [float(Fraction(factor).limit_denominator(_MOST_STEPS)) for factor in factors]
    return value in known or any(map(math.isclose, factors, nearest))


_MOST_STEPS = 100
"""Of an interval between two lines."""


def printed(values: set[tuple[object, ...]]) -> set[tuple[object, ...]]:
    """Values without the step that they were given to."""
    return {(kind, *rest) for kind, _, *rest in values if not (_DERIVED | {"step"}) & set(rest)}

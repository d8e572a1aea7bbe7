"""How statuses of agents become outcomes of ranks, and those the outcome of a capture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from perfd.capture.policy.capture_record import Capture, Participant, Removal, StoredFile
from perfd.model import CaptureFilesRemoved, CaptureFileUpload, CaptureState, CaptureStatus

_MOST_REASONS = 3
"""Sentences of ranks that one capture quotes; the others are counted."""
_MOST_CHARACTERS = 1000
"""Of a reason that a node gives: it is quoted, and may be anything."""
_MOST_FILES = 256
"""Stored per rank, however many its node reports."""


def overall(participants: Sequence[Participant]) -> tuple[CaptureState, str]:
    """The outcome of a capture whose ranks all have theirs: done only when every rank is done."""
    worst_first = (
        CaptureState.FAILED,
        CaptureState.LOST,
        CaptureState.LATE,
        CaptureState.EMPTY,
        CaptureState.REFUSED,
        CaptureState.DONE,
    )
    state = min((who.state for who in participants if who.state), key=worst_first.index)
    notes = list(dict.fromkeys(who.reason for who in participants if who.state is state and who.reason))
    if len(notes) > _MOST_REASONS:
        # A thousand ranks may have reasons that differ only in a number; each rank keeps its own.
        notes[_MOST_REASONS:] = [f"(and {len(notes) - _MOST_REASONS} more, of other ranks)"]
    done = sum(who.state is CaptureState.DONE for who in participants)
    partly = f"{done} of {len(participants)} ranks are done. " if 0 < done < len(participants) else ""
    return state, partly + " ".join(notes)


def apply(participants: Sequence[Participant], node: str, status: CaptureStatus) -> tuple[Participant, ...]:
    """The participants after a status of `node`. A final outcome stays.

    A participant that stood for the whole node becomes one per rank that the status names.
    """
    result: list[Participant] = []
    for who in participants:
        if who.node != node or who.final:
            result.append(who)
        elif who.rank is None and status.ranks:
            result.extend(_changed(replace(who, rank=rank), status) for rank in status.ranks)
        elif not status.ranks or who.rank in status.ranks:
            result.append(_changed(who, status))
        else:
            result.append(who)
    there = {who.rank for who in result if who.node == node}
    newcomers = [rank for rank in status.ranks if rank not in there and None not in there]
    return (*result, *(_changed(Participant(node=node, rank=rank), status) for rank in newcomers))


def _changed(who: Participant, status: CaptureStatus) -> Participant:
    armed_unix_ns = status.time_unix_ns if status.state is CaptureState.ARMED else None
    return replace(
        who,
        state=status.state,
        reason=status.reason,
        armed_unix_ns=who.armed_unix_ns or armed_unix_ns,
        ended_unix_ns=status.time_unix_ns if status.state.final else None,
        started_unix_ns=status.started_unix_ns or who.started_unix_ns,
        stopped_unix_ns=status.stopped_unix_ns or who.stopped_unix_ns,
        files=tuple(status.files) or who.files,
        whole_steps=status.whole_steps,
    )


def without_files(capture: Capture, gone: CaptureFilesRemoved) -> Capture:
    """The capture with these of its files marked as removed; earlier marks stay."""
    paths = frozenset(gone.paths)
    removal = Removal(unix_s=gone.time_unix_ns / 1e9, reason=gone.reason)

    def marked(who: Participant) -> Participant:
        mine = {file.path: removal for file in who.files if file.path in paths}
        return replace(who, removed={**mine, **who.removed}) if mine else who

    report = capture.report
    if report is not None and report.path in paths:
        report = replace(report, path=None)
    if report is not None and report.perfetto_path in paths:
        report = replace(report, perfetto_path=None)
    return replace(capture, participants=tuple(map(marked, capture.participants)), report=report)


def with_upload(capture: Capture, node: str, upload: CaptureFileUpload) -> Capture:
    """The capture after an upload of `node`; a file that is stored stays so."""
    stored = StoredFile(
        url=upload.url,
        size_bytes=upload.size_bytes,
        sha256=upload.sha256,
        reason=upload.reason[:_MOST_CHARACTERS],
        unix_s=upload.time_unix_ns / 1e9,
    )

    def marked(who: Participant) -> Participant:
        # Before the final status it is not known whose files these are.
        mine = who.node == node and (not who.final or any(file.path == upload.path for file in who.files))
        before = who.stored.get(upload.path)
        if not mine or (before is not None and before.url and not upload.url):
            return who
        if before is None and len(who.stored) >= _MOST_FILES:
            return who
        return replace(who, stored={**who.stored, upload.path: stored})

    return replace(capture, participants=tuple(map(marked, capture.participants)))


def end_open(capture: Capture, verdicts: Mapping[str, tuple[CaptureState, str]]) -> Capture:
    """The capture with the open participants of the nodes in `verdicts` ended that way."""
    return replace(
        capture,
        participants=tuple(
            who
            if who.final or who.node not in verdicts
            else replace(who, state=verdicts[who.node][0], reason=verdicts[who.node][1])
            for who in capture.participants
        ),
    )


def open_nodes(capture: Capture) -> list[str]:
    """The nodes that still owe an outcome."""
    return list(dict.fromkeys(who.node for who in capture.participants if not who.final))


def unanswered(capture: Capture, node: str) -> bool:
    """Whether a node has not answered for all of its ranks."""
    return any(who.node == node and who.state is None for who in capture.participants)

"""Messages between a capture and its helpers on the nodes, through the pipes of one srun."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TypeAlias

import msgspec

from perfd.config import AgentCaptureConfig
from perfd.errors import CaptureError
from perfd.model import CaptureRequest, CaptureStatus

_MARK = "perfd/1"
_PIECE = 600
"""slurmstepd cuts lines at 1,024 bytes, and other tasks' lines may come between the parts."""
_MAX_CHARACTERS = 1 << 20
"""Longest message; a list of a job's files is far shorter."""


class HelperSetup(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The first line to every helper: which ranks to look for, and the limits of captures."""

    job: str
    job_id: str
    step: int | None
    directory: str
    """Each node's files go into a folder of its name below this."""
    capture: AgentCaptureConfig


class CaptureOrder(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The second line to every helper: each node's capture. A node that is not named is done."""

    requests: dict[str, CaptureRequest]


class Rank(msgspec.Struct, frozen=True, kw_only=True):
    """A rank that a helper found."""

    rank: int
    gpu: int | None = None


class NodeReady(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A helper runs and found these ranks; without any, `reason` says why."""

    ranks: list[Rank] = []
    reason: str = ""


class RankStatus(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The state of the capture on the helper's node."""

    status: CaptureStatus


ToNode: TypeAlias = HelperSetup | CaptureOrder
FromNode: TypeAlias = NodeReady | RankStatus


def encode(message: ToNode) -> str:
    """One line for all helpers."""
    return json.dumps(msgspec.to_builtins(message)) + "\n"


def decode(line: str) -> ToNode:
    """The decoded line to the helpers; raises `CaptureError` if it is not one."""
    try:
        return msgspec.json.decode(line, type=HelperSetup | CaptureOrder)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise CaptureError(f"Not an order of `perfd capture --slurm`: {error}.") from error


def lines_of(node: str, message: FromNode) -> Iterator[str]:
    """A helper's message as ASCII lines that are short enough to stay whole."""
    text = json.dumps(msgspec.to_builtins(message))
    for start in range(0, len(text), _PIECE):
        more = "+" if start + _PIECE < len(text) else "."
        yield f"{_MARK} {node} {more} {text[start : start + _PIECE]}\n"


class LineAssembly:
    """Reassembles helpers' messages; other lines in between are skipped."""

    def __init__(self) -> None:
        self._pieces: dict[str, str] = {}

    def feed(self, line: str) -> tuple[str, FromNode] | None:
        """The node and its message when this line ends one."""
        words = line.rstrip("\n").split(" ", 3)
        if len(words) != 4 or words[0] != _MARK or words[2] not in "+.":
            return None
        _, node, more, piece = words
        text = self._pieces.pop(node, "") + piece
        if more == "+":
            if len(text) <= _MAX_CHARACTERS:
                self._pieces[node] = text
            return None
        try:
            return node, msgspec.json.decode(text, type=NodeReady | RankStatus)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return None

"""The ranks of a recording, from its `recording.json`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from perfd.collector import Settings
from perfd.errors import RecordingError, reason_of
from perfd.model import RankPlacement, Record


class _Rank(msgspec.Struct):
    rank: int
    local_rank: int | None = None
    gpu: int | None = None


class _Node(msgspec.Struct):
    name: str
    ranks: list[_Rank] = []


class _Manifest(msgspec.Struct):
    nodes: list[_Node] = []
    world_size: int | None = None
    start_unix_s: float | None = None


def placements_from_recording(
    manifest: Mapping[str, object], job: str, node: str | None = None
) -> list[RankPlacement]:
    """Placements from the content of `recording.json`, on one node, or on all with None.

    Raises `RecordingError` for invalid content.
    """
    content = _converted(manifest)
    return [
        RankPlacement(
            job=job,
            rank=rank.rank,
            local_rank=rank.local_rank,
            world_size=content.world_size,
            gpu=rank.gpu,
        )
        for recorded in content.nodes
        if node is None or recorded.name == node
        for rank in recorded.ranks
    ]


class RecordedRanks:
    """Plays a `recording.json`: placements of the node's ranks, once, at the start."""

    def __init__(self, path: Path, settings: Settings) -> None:
        try:
            manifest = msgspec.json.decode(path.read_bytes(), type=dict[str, object])
        except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise RecordingError(
                f"{path}: cannot read the ranks of the recording: {reason_of(error)}."
            ) from error
        start_unix_s = _converted(manifest).start_unix_s
        self._start_unix_ns = None if start_unix_s is None else round(start_unix_s * 1e9)
        self._clock = settings.clock
        self._due: Sequence[Record] = placements_from_recording(manifest, settings.job, settings.node)

    def span_unix_ns(self) -> tuple[int, int] | None:
        return None if self._start_unix_ns is None else (self._start_unix_ns, self._start_unix_ns)

    def collect(self) -> Sequence[Record]:
        if self._start_unix_ns is not None and self._clock.unix_ns() < self._start_unix_ns:
            return ()
        due, self._due = self._due, ()
        return due

    def close(self) -> None:
        self._due = ()


def _converted(manifest: Mapping[str, object]) -> _Manifest:
    try:
        return msgspec.convert(manifest, _Manifest)
    except msgspec.ValidationError as error:
        raise RecordingError(f"recording.json has invalid ranks: {error}.") from error

"""The streams of a recording as collectors that the agent can run."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from perfd.clock import Clock
from perfd.collector import CollectorSpec, Options, RecordedStream, Settings
from perfd.collector_loading import collector_entry_points, load_collector
from perfd.errors import ConfigError, RecordingError
from perfd.model import GpuInfo, RankPlacement, Record
from perfd.recording.recording_format import RECORDS_KIND, RecordedNode, Recording, StreamEntry
from perfd.recording.records_stream import RecordsStream, plain_file

Player = Callable[[Path, Settings], RecordedStream]

_LONGEST_NS = 90 * 86_400 * 10**9
"""No recording is as long; a replay takes a step for each interval of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamPlayers:
    """How each kind of stream is played, and by which collector."""

    by_kind: Mapping[str, tuple[str, Player]]
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Playback:
    """The streams of a recording, opened, by node."""

    specs: Mapping[str, Sequence[CollectorSpec]]
    start_unix_ns: int
    end_unix_ns: int
    warnings: tuple[str, ...]


def installed_players() -> StreamPlayers:
    """The players of all installed collectors; one that cannot be imported is skipped."""
    by_kind: dict[str, tuple[str, Player]] = {RECORDS_KIND: (RECORDS_KIND, RecordsStream)}
    warnings = []
    for name in sorted(collector_entry_points()):
        try:
            spec = load_collector(name)
        except (ImportError, AttributeError, ConfigError) as error:
            warnings.append(f"The collector {name!r} cannot be loaded; its streams are skipped: {error}.")
            continue
        for kind, player in spec.replay.items():
            by_kind.setdefault(kind, (spec.name, player))
    return StreamPlayers(by_kind=by_kind, warnings=tuple(warnings))


def open_playback(
    recording: Recording, scratch: Path, clock: Clock, players: StreamPlayers, *, interval_s: float
) -> Playback:
    """Open every stream that can be played; compressed ones are unpacked below `scratch`.

    Raises `RecordingError` if no stream can be played.
    """
    playable = [stream for stream in recording.manifest.streams if stream.kind in players.by_kind]
    unplayable = [stream for stream in recording.manifest.streams if stream.kind not in players.by_kind]
    warnings = [*recording.warnings, *players.warnings, *_left_out(unplayable)]
    opened: dict[str, list[CollectorSpec]] = {}
    spans: list[tuple[int, int]] = []
    for stream in playable:
        collector, player = players.by_kind[stream.kind]
        settings = Settings(node=stream.node, job=recording.name, clock=clock)
        try:
            path, damage = plain_file(recording, stream, scratch)
            played = player(path, settings)
            span = played.span_unix_ns()
        except RecordingError as error:
            warnings.append(f"{stream.path} was skipped: {error}")
            continue
        damage = damage or (played.damage if isinstance(played, RecordsStream) else None)
        if damage:
            warnings.append(damage)
        if span is not None:
            spans.append(span)
        specs = opened.setdefault(stream.node, [])
        name = _free_name(collector, taken={spec.name for spec in specs})
        specs.append(_spec(name, played, interval_s))
    if not opened:
        raise RecordingError(
            f"No stream of the recording {recording.directory} can be played: {' '.join(warnings)}"
        )
    _add_inventory(opened, recording, interval_s)
    start_unix_ns, end_unix_ns = _span(spans, recording)
    if end_unix_ns - start_unix_ns > _LONGEST_NS:
        days = (end_unix_ns - start_unix_ns) / 86_400e9
        raise RecordingError(
            f"The recording {recording.directory} spans {days:,.0f} days: one of its times is wrong."
        )
    return Playback(
        specs=opened, start_unix_ns=start_unix_ns, end_unix_ns=end_unix_ns, warnings=tuple(warnings)
    )


def _spec(name: str, played: RecordedStream, interval_s: float) -> CollectorSpec:
    return CollectorSpec(name=name, options=Options, create=lambda *_: played, interval_s=interval_s)


def _left_out(streams: Sequence[StreamEntry]) -> list[str]:
    """A sentence for each kind without a player."""
    sentences = []
    for kind in dict.fromkeys(stream.kind for stream in streams):
        first, *others = (stream.path for stream in streams if stream.kind == kind)
        these = f"{first} and {len(others)} more were" if others else f"{first} was"
        sentences.append(f"{these} skipped: no installed collector plays {kind!r}.")
    return sentences


def _free_name(collector: str, taken: Collection[str]) -> str:
    """The collector's name, numbered if it plays several streams of one node."""
    names = itertools.chain([collector], (f"{collector}_{number}" for number in itertools.count(2)))
    return next(name for name in names if name not in taken)


class _Inventory:
    """Returns the node's description in `recording.json` once: older streams do not name GPUs or ranks."""

    def __init__(self, records: Sequence[Record]) -> None:
        self._records = records

    def collect(self) -> Sequence[Record]:
        records, self._records = self._records, ()
        return records

    def close(self) -> None:
        pass

    def span_unix_ns(self) -> None:
        return None


def _add_inventory(opened: dict[str, list[CollectorSpec]], recording: Recording, interval_s: float) -> None:
    for node in recording.manifest.nodes:
        if node.name in opened:
            inventory = _Inventory(_inventory_of(node, recording))
            # First, so that more detailed records of a stream come after it.
            opened[node.name].insert(0, _spec("recording", inventory, interval_s))


def _inventory_of(node: RecordedNode, recording: Recording) -> Sequence[Record]:
    gpus = [
        GpuInfo(
            index=gpu.index,
            name=gpu.name,
            uuid=gpu.uuid,
            memory_bytes=gpu.memory_bytes,
            max_sm_clock_hz=gpu.max_sm_clock_hz,
        )
        for gpu in node.gpus
    ]
    ranks = [
        RankPlacement(
            job=recording.name,
            rank=rank.rank,
            local_rank=rank.local_rank,
            gpu=rank.gpu,
            world_size=recording.manifest.world_size,
        )
        for rank in node.ranks
    ]
    return [*gpus, *ranks]


def _span(spans: Sequence[tuple[int, int]], recording: Recording) -> tuple[int, int]:
    """The first and the last time in any stream; equal if there is none."""
    if spans:
        return min(first for first, _ in spans), max(last for _, last in spans)
    start_unix_ns = round((recording.manifest.start_unix_s or 0.0) * 1e9)
    return start_unix_ns, start_unix_ns

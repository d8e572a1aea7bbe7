from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from perfd.clock import VirtualClock
from perfd.collector import Settings
from perfd.errors import RecordingError
from perfd.model import GpuInfo, LogProgress, RankPlacement, Record
from perfd.recording import open_recording
from perfd.session.recording.recorded_streams import Playback, StreamPlayers, installed_players, open_playback

SECOND = 1_000_000_000


class Numbers:
    """Plays a file of whole seconds, one a line: a record for each when it is due."""

    def __init__(self, path: Path, settings: Settings) -> None:
        text = path.read_text()
        if "garbage" in text:
            raise RecordingError(f"{path.name} is not a list of numbers.")
        self._settings = settings
        self._times = [int(line) * SECOND for line in text.split()]
        self.span = (self._times[0], self._times[-1]) if self._times else None

    def span_unix_ns(self) -> tuple[int, int] | None:
        return self.span

    def collect(self) -> Sequence[Record]:
        now = self._settings.clock.unix_ns()
        due = [time for time in self._times if time <= now]
        self._times = self._times[len(due) :]
        return [
            LogProgress(
                job=self._settings.job,
                stream="s",
                lines=0,
                read_bytes=0,
                unrecognized_lines=0,
                last_line_unix_ns=time,
            )
            for time in due
        ]

    def close(self) -> None:
        pass


PLAYERS = StreamPlayers(by_kind={"numbers": ("counter", Numbers)})


def recording_of(directory: Path, files: dict[str, str], **manifest: object) -> Path:
    streams = []
    for path, content in files.items():
        (directory / path).parent.mkdir(parents=True, exist_ok=True)
        (directory / path).write_text(content)
        streams.append({"node": path.partition("/")[0], "kind": Path(path).suffix[1:], "path": path})
    (directory / "recording.json").write_text(
        json.dumps({"format": 1, "name": "j", "streams": streams} | manifest)
    )
    return directory


def opened(directory: Path, clock: VirtualClock | None = None) -> Playback:
    recording = open_recording(directory)
    return open_playback(recording, directory / "scratch", clock or VirtualClock(), PLAYERS, interval_s=1.0)


def test_the_span_of_a_recording_is_that_of_all_its_streams(tmp_path):
    playback = opened(recording_of(tmp_path, {"a/x.numbers": "5 9", "b/x.numbers": "3 4"}))
    assert (playback.start_unix_ns, playback.end_unix_ns) == (3 * SECOND, 9 * SECOND)
    assert list(playback.specs) == ["a", "b"]
    assert playback.warnings == ()


def test_a_recording_without_any_time_is_one_instant_long(tmp_path):
    playback = opened(recording_of(tmp_path, {"a/x.numbers": ""}, start_unix_s=7.5))
    assert (playback.start_unix_ns, playback.end_unix_ns) == (7_500_000_000, 7_500_000_000)


def test_a_kind_that_nothing_plays_is_skipped_with_a_warning(tmp_path):
    playback = opened(recording_of(tmp_path, {"a/x.numbers": "1", "a/y.tea-leaves": "?"}))
    assert playback.warnings == ("a/y.tea-leaves was skipped: no installed collector plays 'tea-leaves'.",)
    assert [spec.name for spec in playback.specs["a"]] == ["counter"]


def test_a_stream_that_cannot_be_opened_is_skipped_with_its_reason(tmp_path):
    playback = opened(recording_of(tmp_path, {"a/x.numbers": "1", "b/y.numbers": "garbage"}))
    assert playback.warnings == ("b/y.numbers was skipped: y.numbers is not a list of numbers.",)
    assert list(playback.specs) == ["a"]


def test_a_recording_of_which_nothing_can_be_played_is_an_error_with_the_reasons(tmp_path):
    with pytest.raises(RecordingError, match=r"No stream of .* can be played: .*tea-leaves"):
        opened(recording_of(tmp_path, {"a/y.tea-leaves": "?"}))


def test_two_streams_of_one_kind_on_a_node_are_collectors_of_different_names(tmp_path):
    playback = opened(recording_of(tmp_path, {"a/x.numbers": "1", "a/y.numbers": "2", "a/z.numbers": "3"}))
    assert [spec.name for spec in playback.specs["a"]] == ["counter", "counter_2", "counter_3"]


def test_what_the_manifest_says_of_a_node_comes_first_and_once(tmp_path):
    node = {
        "name": "a",
        "gpus": [{"index": 3, "name": "H200"}],
        "ranks": [{"rank": 1, "local_rank": 0, "gpu": 3}],
    }
    playback = opened(
        recording_of(tmp_path, {"a/x.numbers": "1"}, nodes=[node, {"name": "idle"}], world_size=8)
    )
    inventory = playback.specs["a"][0]
    collector = inventory.create(inventory.options(), Settings(node="a", job="j"))
    assert list(collector.collect()) == [
        GpuInfo(index=3, name="H200"),
        RankPlacement(job="j", rank=1, local_rank=0, gpu=3, world_size=8),
    ]
    assert list(collector.collect()) == []
    assert list(playback.specs) == ["a"]


def test_streams_play_by_the_shared_clock_under_the_recordings_name(tmp_path):
    clock = VirtualClock(2 * SECOND)
    playback = opened(recording_of(tmp_path, {"a/x.numbers": "1 2 3"}), clock)
    spec = playback.specs["a"][0]
    collector = spec.create(spec.options(), Settings(node="ignored", job="ignored"))
    assert [(r.job, r.last_line_unix_ns) for r in collector.collect()] == [("j", SECOND), ("j", 2 * SECOND)]
    clock.advance(1.0)
    assert [r.last_line_unix_ns for r in collector.collect()] == [3 * SECOND]


def test_perfd_itself_plays_records():
    assert "records" in installed_players().by_kind

from __future__ import annotations

import gzip
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from perfd.aggregator import Aggregator
from perfd.aggregator.web_api import PAGE_FILE, save_run
from perfd.analysis.findings import Kind
from perfd.cli import main
from perfd.clock import SEND_AFTER, VirtualClock
from perfd.config import AggregatorConfig, RulesConfig
from perfd.errors import ConfigError, RecordingError
from perfd.recording import bundled, bundled_names
from perfd.session.replay_session import ReplayOptions, ReplayProgress, ReplayResult, replay
from perfd.session.session_config import SessionConfig
from perfd.session.text.result_files import save_results, summary_json
from perfd.session.text.summary_text import in_words

HABITS = Path(__file__).parents[2] / "benchmarks/gpu/recorded_habits"


class CountingClock(VirtualClock):
    """A virtual clock that says how long it was slept on."""

    slept_s = 0.0

    def sleep(self, seconds: float) -> None:
        self.slept_s += max(0.0, seconds)
        super().sleep(seconds)


def played(recording: Path | str, **options) -> ReplayResult:
    path = recording if isinstance(recording, Path) else bundled(recording)
    return replay(ReplayOptions(recording=path, **options))


def copied(tmp_path: Path, name: str = "pp4_few") -> Path:
    shutil.copytree(bundled(name), tmp_path / name)
    return tmp_path / name


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("dp4", Kind.COMPUTE_BOUND),
        ("dp4_slow2", Kind.STRAGGLER),
        ("pp2dp2", Kind.COMPUTE_BOUND),
        ("pp4_few", Kind.PIPELINE_BUBBLE),
    ],
)
def test_a_bundled_recording_gives_one_job_with_all_its_steps_gpus_and_its_bottleneck(name, kind):
    result = played(name)
    (job,) = result.summaries
    assert job.name == name
    assert (job.steps.count, job.steps.first, job.steps.last) == (18, 1, 18)
    assert [(gpu.node, gpu.gpu, gpu.rank) for gpu in job.gpus] == [("node0", str(i), i) for i in range(4)]
    assert all(gpu.sm_active_ratio and gpu.tensor_active_ratio and gpu.power_w for gpu in job.gpus)
    assert job.bottleneck.kind is kind


def test_the_stall_of_too_few_micro_batches_fires_an_alert_and_a_healthy_job_fires_none():
    result = played("pp4_few")
    assert "PerfdPipelineStall" in [alert["name"] for alert in result.alerts]
    assert played("dp4").alerts == []


@pytest.mark.slow
@pytest.mark.parametrize(("name", "ranks"), [("inturn2", [0, 1, 0]), ("megatronuneven2", [1])])
def test_a_replay_at_full_speed_lists_each_fault_as_a_live_session_does(name, ranks):
    """Two faults of one rank around one of another; late hosts, which only rare looks find."""
    (job,) = played(HABITS / name / "recording", allow_missing=True).summaries
    faults = [(one.kind, [culprit.id for culprit in one.culprits]) for one in job.past.faults]
    assert faults == [(Kind.STRAGGLER, [rank]) for rank in ranks]


def test_an_alert_of_a_recording_requests_no_capture_and_the_end_names_it(capsys):
    seen: list[Any] = []

    result = replay(
        ReplayOptions(recording=bundled("pp4_few")),
        on_end=lambda _, aggregator: seen.extend(aggregator.captures()),
    )
    assert main(["replay", "pp4_few", "--speed", "max"]) == 0

    assert seen == []
    assert [alert["captures"] for alert in result.alerts] == [[]]
    printed = capsys.readouterr().out
    assert "On a live job, PerfdPipelineStall would have started a capture." in printed
    assert "refused" not in printed


def test_what_is_skipped_is_played_all_the_same_and_takes_no_time():
    clock = VirtualClock()
    whole = replay(ReplayOptions(recording=bundled("pp4_few")))

    skipped = replay(ReplayOptions(recording=bundled("pp4_few"), speed=2.0, skip_s=25.0), real_clock=clock)

    assert summary_json(skipped.summaries) == summary_json(whole.summaries)
    assert clock.monotonic_s() == pytest.approx((35.0 - 25.0) / 2, abs=0.5)


@pytest.mark.slow
@pytest.mark.parametrize("name", bundled_names())
def test_two_replays_give_the_same_bytes_at_any_speed(name):
    clock = CountingClock()
    first = played(name)
    paced = replay(ReplayOptions(recording=bundled(name), speed=4.0), real_clock=clock)
    assert summary_json(paced.summaries) == summary_json(first.summaries)
    assert in_words(paced.summaries, paced.alerts) == in_words(first.summaries, first.alerts)
    assert clock.slept_s >= first.played_s / 4


def test_progress_goes_forward_to_the_end_and_is_reported_between_ticks_when_paced():
    reported: list[ReplayProgress] = []
    replay(
        ReplayOptions(recording=bundled("pp4_few"), speed=1.0),
        on_progress=reported.append,
        real_clock=VirtualClock(),
    )
    times = [progress.played_s for progress in reported]
    assert times == sorted(times)
    assert times[-1] == reported[-1].total_s
    assert len(times) > 100


@pytest.mark.parametrize("tick_s", [10.0, 37.0, 53.1, 100.0, 333.3, 1000.0])
def test_all_of_a_recording_is_read_wherever_in_a_tick_it_begins_and_ends(tick_s: float) -> None:
    assert [job.steps.count for job in played("pp4_few", tick_s=tick_s).summaries] == [18]


@pytest.mark.parametrize("tick_s", [1.0, 0.25])
def test_it_reads_at_the_instants_at_which_agents_read(tick_s: float) -> None:
    seen_unix_s: list[float] = []
    options = ReplayOptions(recording=bundled("pp4_few"), tick_s=tick_s)
    replay(options, on_progress=lambda now: seen_unix_s.append(now.start_unix_s + now.played_s))
    # The last one is the recording's end.
    ticks = [at / tick_s - SEND_AFTER for at in seen_unix_s[:-1]]
    assert all(abs(tick - round(tick)) < 1e-5 for tick in ticks)


def test_the_live_numbers_are_there_while_a_replay_runs():
    seen: list[int] = []

    def look(progress: ReplayProgress) -> None:
        live = progress.aggregator.live("pp4_few")
        if live is not None:
            seen.append(live.steps.count)

    replay(ReplayOptions(recording=bundled("pp4_few")), on_progress=look)
    assert len(set(seen)) > 2
    assert max(seen) == 18


def test_rules_of_the_user_are_evaluated_too(tmp_path):
    rules = tmp_path / "mine.yaml"
    rules.write_text(
        "groups:\n- name: mine\n  rules:\n  - alert: Slow\n    expr: perfd_step_time_seconds > 0.1\n"
        "    annotations: {summary: 'too slow for me'}\n"
    )
    config = SessionConfig(aggregator=AggregatorConfig(rules=RulesConfig(builtin=False, files=[str(rules)])))
    result = played("dp4", config=config)
    assert [alert["name"] for alert in result.alerts] == ["Slow"]
    assert "- Slow at step" in in_words(result.summaries, result.alerts)


def test_wrong_rules_are_an_error_before_anything_is_played(tmp_path):
    rules = tmp_path / "mine.yaml"
    rules.write_text("groups: [{name: a, rules: [{alert: B, expr: 'up >'}]}]")
    config = SessionConfig(aggregator=AggregatorConfig(rules=RulesConfig(files=[str(rules)])))
    with pytest.raises(ConfigError, match=r"mine\.yaml"):
        played("dp4", config=config)


def test_a_replay_leaves_nothing_behind(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    played("pp4_few")
    assert list(tmp_path.iterdir()) == []


def test_without_its_gpu_samples_a_recording_still_shows_its_steps(tmp_path):
    recording = copied(tmp_path)
    (recording / "node0/nvml.jsonl.gz").unlink()
    with pytest.raises(RecordingError, match=r"nvml\.jsonl\.gz, which is not there"):
        played(recording)
    result = played(recording, allow_missing=True)
    assert result.summaries[0].steps.count == 18
    assert result.warnings == ("node0/nvml.jsonl.gz is missing and was skipped.",)


def test_without_its_log_a_recording_still_shows_its_gpus(tmp_path):
    recording = copied(tmp_path)
    (recording / "node0/stdout.log").unlink()
    (job,) = played(recording, allow_missing=True).summaries
    assert job.steps.count == 0
    assert job.efficiency.mfu_ratio is None
    assert len(job.gpus) == 4


def test_a_compressed_log_is_played_as_the_plain_one(tmp_path):
    recording = copied(tmp_path)
    log = recording / "node0/stdout.log"
    (recording / "node0/stdout.log.gz").write_bytes(gzip.compress(log.read_bytes()))
    log.unlink()
    manifest = recording / "recording.json"
    manifest.write_text(manifest.read_text().replace("stdout.log", "stdout.log.gz"))
    assert summary_json(played(recording).summaries) == summary_json(played("pp4_few").summaries)


@pytest.mark.parametrize("keep", [0, 1, 10, 5_000, 36_000])
def test_samples_that_are_cut_are_played_up_to_the_cut(tmp_path, keep):
    recording = copied(tmp_path)
    samples = recording / "node0/nvml.jsonl.gz"
    samples.write_bytes(samples.read_bytes()[:keep])
    result = played(recording)
    assert result.summaries[0].steps.count == 18
    assert keep == 0 or "damaged" in result.warnings[0]


def test_lines_of_garbage_among_samples_change_nothing(tmp_path):
    recording = copied(tmp_path)
    samples = recording / "node0/nvml.jsonl.gz"
    lines = gzip.decompress(samples.read_bytes()).splitlines(keepends=True)
    garbage = [b"\xff\xfe\x00 garbage\n", b"{\n", b'{"unix_s": "soon", "gpu": []}\n', b"null\n", b"\n"]
    samples.write_bytes(
        gzip.compress(b"".join(part for line in lines for part in (line, garbage[len(line) % 5])))
    )
    assert summary_json(played(recording).summaries) == summary_json(played("pp4_few").summaries)


def test_a_kind_that_nobody_plays_is_said_once_for_all_its_streams(tmp_path):
    recording = copied(tmp_path, "pp2dp2")
    manifest = recording / "recording.json"
    manifest.write_text(manifest.read_text().replace('"nccl-inspector"', '"nobody-plays-this"'))
    (warning,) = played(recording).warnings
    assert warning.startswith("node0/nccl-inspector-rank0.jsonl.gz and 3 more were skipped")


def test_an_empty_log_gives_a_summary_without_steps(tmp_path):
    (tmp_path / "n").mkdir()
    (tmp_path / "n/stdout.log").write_bytes(b"")
    streams = [{"node": "n", "kind": "training-log", "path": "n/stdout.log"}]
    (tmp_path / "recording.json").write_text(json.dumps({"format": 1, "streams": streams}))
    result = played(tmp_path)
    assert [job.steps.count for job in result.summaries] in ([], [0])
    assert result.played_s == 0.0


def test_the_log_of_one_job_on_two_nodes_is_one_job(tmp_path):
    recording = copied(tmp_path)
    shutil.copytree(recording / "node0", recording / "node1")
    manifest = json.loads((recording / "recording.json").read_text())
    manifest["nodes"].append(
        {"name": "node1", "gpus": [{"index": i, "name": "NVIDIA H200"} for i in range(4)]}
    )
    manifest["streams"].append({"node": "node1", "kind": "nvml", "path": "node1/nvml.jsonl.gz"})
    (recording / "recording.json").write_text(json.dumps(manifest))
    result = played(recording)
    assert [job.name for job in result.summaries] == ["pp4_few"]
    assert result.summaries[0].steps.count == 18


def test_while_a_job_runs_its_summary_has_the_findings_of_its_newest_steps() -> None:
    compared: list[bool] = []

    def compare(progress: ReplayProgress) -> None:
        aggregator = progress.aggregator
        for summary in aggregator.summary():
            live = aggregator.live(summary.name)
            compared.append(live is not None and summary.findings == live.findings)

    # The recording has the job's end; from there on, its findings are those of the whole job.
    replay(ReplayOptions(recording=bundled("dp2_nccl"), tick_s=5.0), on_progress=compare)
    assert len(compared) > 10
    assert all(compared[:-3])


@pytest.fixture(scope="module")
def left_by_runs(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Folders with what `perfd run` leaves of a job."""
    root = tmp_path_factory.mktemp("left")

    def leave(name: str) -> str:
        folder = root / name
        folder.mkdir()

        def save(result: ReplayResult, aggregator: Aggregator) -> None:
            save_results(folder, result.summaries, "")
            save_run(aggregator, folder / PAGE_FILE, 1_795_000_000.0)

        replay(ReplayOptions(recording=bundled(name), http="127.0.0.1:0"), on_end=save)
        return str(folder)

    return [leave("dp4"), leave("dp4_slow2")]


def test_what_a_run_leaves_is_compared(left_by_runs: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", *left_by_runs]) == 1
    assert "Regressed: step_time_s" in capsys.readouterr().out


@pytest.mark.parametrize("verb", ["report", "diagnose"])
def test_what_a_run_leaves_is_reported_and_diagnosed(
    left_by_runs: list[str], verb: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([verb, left_by_runs[1]]) == 0
    assert "rank 2" in capsys.readouterr().out

"""`perfd diagnose`, of a recording and of a live aggregator."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from perfd.aggregator.aggregator import Aggregator
from perfd.cli import main
from perfd.clock import VirtualClock
from perfd.config import AggregatorConfig, RulesConfig
from perfd.model import Event, EventKind, JobDescription
from perfd.recording.recording_format import find_recording
from tests.support.fake_agent import FakeAgent


def test_a_recording_is_diagnosed_with_evidence_and_what_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diagnose", "dp4_slow2", "--json"]) == 0

    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == "perfd.diagnosis/2"
    (job,) = document["jobs"]
    assert job["bottleneck"] == job["findings"][0]
    assert (job["bottleneck"]["kind"], job["bottleneck"]["culprits"]) == (
        "straggler",
        [{"kind": "rank", "id": 2}],
    )


def test_in_words_every_finding_has_its_evidence(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diagnose", "pp4_few"]) == 0

    said = capsys.readouterr().out
    assert said.startswith("# pp4_few\n")
    assert "- Theory expects 42.9%" in said
    assert "For the next run: Use more micro-batches" in said


def test_a_stream_that_cannot_be_read_is_reported_and_the_rest_is_diagnosed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recording = shutil.copytree(find_recording("pp4_few"), tmp_path / "recording")
    manifest = json.loads((recording / "recording.json").read_text())
    dump = {"kind": "flight-recorder", "path": "dump_3", "node": "node0", "rank": 3}
    manifest["streams"].append(dump)
    (recording / "recording.json").write_text(json.dumps(manifest))
    # A pickle that calls `print`.
    (recording / "dump_3").write_bytes(b"cbuiltins\nprint\n(S'called'\ntR.")

    assert main(["diagnose", str(recording)]) == 0

    out, err = capsys.readouterr()
    assert out.startswith("# pp4_few\n")
    assert "called" not in out
    assert "dump_3 was skipped" in err
    assert "GLOBAL, which is not plain data" in err


def test_jobs_of_an_aggregator_are_diagnosed(capsys: pytest.CaptureFixture[str]) -> None:
    config = AggregatorConfig(listen="127.0.0.1:0", http_listen="127.0.0.1:0")
    aggregator = Aggregator(config, VirtualClock(10**18), manual=True)
    aggregator.start()
    try:
        with FakeAgent(aggregator.grpc_address) as agent:
            agent.hello()
            agent.send(JobDescription(job="a/b", framework="megatron-lm"))
            aggregator.tick()
            url = f"http://{aggregator.http_address}"
            assert main(["diagnose", "--aggregator", url, "--json"]) == 0
            (job,) = json.loads(capsys.readouterr().out)["jobs"]
            assert (job["name"], job["bottleneck"]["kind"]) == ("a/b", "unknown")
            assert main(["diagnose", "--aggregator", url, "--job", "a/b"]) == 0
            assert "What to do: " in capsys.readouterr().out
            ended = Event(kind=EventKind.JOB_ENDED, time_unix_ns=10**18, message="", job="a/b")
            agent.send(ended)
            aggregator.tick()
            assert main(["diagnose", "--aggregator", url, "--job", "a/b"]) == 0
            assert "For the next run: " in capsys.readouterr().out
            assert main(["diagnose", "--aggregator", url, "--job", "none"]) == 2
            assert "There is no job 'none'" in capsys.readouterr().err
    finally:
        aggregator.stop()


def test_alerts_that_fire_now_are_below_the_findings_of_their_job(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rules = tmp_path / "rules.yaml"
    rules.write_text(
        "groups: [{name: g, rules: [{alert: Any, expr: perfd_job_ended == 0, "
        "annotations: {summary: '{{ $labels.perfd_job }} is there'}}]}]"
    )
    config = AggregatorConfig(
        listen="127.0.0.1:0",
        http_listen="127.0.0.1:0",
        rules=RulesConfig(builtin=False, files=[str(rules)]),
    )
    clock = VirtualClock(10**18)
    aggregator = Aggregator(config, clock, manual=True)
    aggregator.start()
    try:
        with FakeAgent(aggregator.grpc_address) as agent:
            agent.hello()
            agent.send(JobDescription(job="a", framework="megatron-lm"))
            agent.send(JobDescription(job="b", framework="megatron-lm"))
            aggregator.tick()
            clock.advance(5.0)
            aggregator.tick()
            assert main(["diagnose", "--aggregator", f"http://{aggregator.http_address}"]) == 0
            first, second = capsys.readouterr().out.split("# b")
            assert "Alerts that fire now:\n- Any: a is there.\n" in first
            assert "Alerts that fire now:\n- Any: b is there.\n" in second
    finally:
        aggregator.stop()


def test_a_job_in_the_place_of_a_recording_is_shown_where_it_belongs(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["diagnose", "llama-70b"]) == 2
    assert "Of a job that runs now: perfd diagnose --job llama-70b." in capsys.readouterr().err


def test_a_recording_and_an_aggregator_at_once_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diagnose", "dp4", "--job", "x"]) == 2
    assert "not both" in capsys.readouterr().err

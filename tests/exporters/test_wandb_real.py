"""The real `wandb` package: offline, and against a server that stands in for W&B's."""

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

import psutil
import pytest
from aggregator.support import START_S, aggregator, gpus, place, step
from exporters.support import until

from perfd.clock import VirtualClock
from perfd.config import AggregatorConfig, ExportersConfig, RulesConfig, WandbConfig
from perfd.exporters.wandb.wandb_exporter import REPORT_FILE, SUMMARY_FILE
from perfd.exporters.wandb.wandb_messages import LogNumbers
from perfd.exporters.wandb.wandb_runs import WandbRuns
from perfd.exporters.wandb.wandb_worker import init_arguments, run_id
from perfd.recording import bundled
from perfd.session.replay_session import ReplayOptions, replay
from perfd.session.session_config import SessionConfig
from tests.support.fake_agent import FakeAgent
from tests.support.wandb_server import WandbServer, read_records

# W&B's processes start slowly on a machine that is busy.
pytestmark = pytest.mark.timeout(180)
STEPS = 8
SLOW = {
    "groups": [
        {
            "name": "g",
            "rules": [
                {
                    "alert": "Slow",
                    "expr": "perfd_step_time_seconds > 0",
                    "labels": {"severity": "warning"},
                    "annotations": {"description": "It is slow."},
                }
            ],
        }
    ]
}


@pytest.fixture
def server():
    with WandbServer() as started:
        yield started


@pytest.fixture
def online(server, tmp_path):
    key = tmp_path / "key"
    key.write_text("k" * 40 + "\n")
    return {
        "mode": "online",
        "base_url": server.url,
        "api_key_file": str(key),
        "directory": str(tmp_path),
        "timeout_s": 60.0,
    }


@contextmanager
def watched(tmp_path, clock=None, *, stop_within_s=150.0, **wandb):
    """An aggregator with a job of a few steps and an alert, and a limit for W&B's time at its end."""
    rules = tmp_path / "rules.yaml"
    rules.write_text(json.dumps(SLOW))
    exporters = ExportersConfig(wandb=WandbConfig(**wandb))
    with (
        patch("perfd.aggregator.aggregator._STOP_WITHIN_S", stop_within_s),
        aggregator(
            clock, exporters=exporters, rules=RulesConfig(builtin=False, files=[str(rules)])
        ) as running,
    ):
        with FakeAgent(running.grpc_address) as agent:
            agent.hello()
            agent.send(place(0, 0))
            agent.send(*(gpus(START_S + second, sm_active_ratio=0.5) for second in range(STEPS + 1)))
            agent.send(*(step(number, time_s=START_S + number) for number in range(1, STEPS + 1)))
        running.tick(START_S + 30.0)
        yield running


def records(path):
    from wandb.proto import wandb_internal_pb2  # noqa: PLC0415  (a second, which whoever only collects need not wait)

    return [wandb_internal_pb2.Record.FromString(data) for data in read_records(path)]


def values(record):
    return {
        item.nested_key[0] if item.nested_key else item.key: json.loads(item.value_json)
        for item in record.item
    }


def test_offline_keeps_steps_alerts_and_the_report(tmp_path):
    with watched(tmp_path, mode="offline", directory=str(tmp_path)):
        pass
    [path] = tmp_path.glob("wandb/offline-run-*/*.wandb")
    read = records(path)
    [row] = [values(record.history) for record in read if record.HasField("history")]
    assert row["perfd/step"] == STEPS
    assert row["perfd/step_time_s"] == 1.0
    assert row["perfd/gpu/sm_active_ratio"] == 0.5
    axes = {
        record.metric.name or record.metric.glob_name: record.metric.step_metric
        for record in read
        if record.HasField("metric")
    }
    assert axes["perfd/*"] == "perfd/step"
    [reported] = [record.alert for record in read if record.HasField("alert")]
    assert (reported.title, reported.text, reported.level) == ("Slow", "It is slow.", "WARN")
    [artifact] = [record.artifact for record in read if record.HasField("artifact")]
    files = {entry.path: entry.local_path for entry in artifact.manifest.contents}
    assert set(files) == {SUMMARY_FILE, REPORT_FILE}
    # Beside the run, for a later `wandb sync`, and not in a cache.
    assert all(Path(path).is_relative_to(tmp_path) for path in files.values())
    assert json.loads(Path(files[SUMMARY_FILE]).read_text())["jobs"][0]["name"] == "llm"
    [run] = [record.run for record in read if record.HasField("run")]
    assert (run.run_id, run.run_group) == ("llm-perfd", "llm")


def test_a_recorded_job_is_a_run_with_mfu_breakdown_and_activity_over_its_steps(tmp_path):
    exporters = ExportersConfig(wandb=WandbConfig(mode="offline", directory=str(tmp_path)))
    config = SessionConfig(aggregator=AggregatorConfig(exporters=exporters))
    replay(ReplayOptions(recording=bundled("pp4_few"), config=config))
    [path] = tmp_path.glob("wandb/offline-run-*/*.wandb")
    rows = [values(record.history) for record in records(path) if record.HasField("history")]
    steps = [row["perfd/step"] for row in rows]
    assert len(steps) > 1
    assert steps == sorted(set(steps))
    for name in (
        "mfu_ratio",
        "tokens_per_s",
        "breakdown/forward_ratio",
        "communication/share_ratio",
        "pipeline/stall_ratio",
        "gpu/tensor_active_ratio",
    ):
        assert rows[-1][f"perfd/{name}"] > 0


@pytest.mark.system
def test_an_offline_run_is_uploaded_by_wandb_sync(server, tmp_path):
    with watched(tmp_path, mode="offline", directory=str(tmp_path)):
        pass
    [run] = tmp_path.glob("wandb/offline-run-*")
    environment = {**os.environ, "WANDB_BASE_URL": server.url, "WANDB_API_KEY": "k" * 40}
    wandb = Path(sys.executable).with_name("wandb")
    subprocess.run([wandb, "sync", str(run)], cwd=tmp_path, env=environment, check=True)
    [stored] = server.runs.values()
    assert [row["perfd/step"] for row in stored.rows] == [STEPS]
    assert [reported["title"] for reported in stored.alerts] == ["Slow"]
    assert [set(artifact.files) for artifact in server.artifacts] == [{SUMMARY_FILE, REPORT_FILE}]


@pytest.mark.system
def test_online_a_sibling_run_gets_steps_the_alert_and_the_report(server, online, tmp_path):
    with watched(tmp_path, **online, run="sibling"):
        pass
    [run] = server.runs.values()
    assert (run.run_id, run.group, run.job_type, run.project) == ("llm-perfd", "llm", "perfd", "perfd")
    assert [row["perfd/step"] for row in run.rows] == [STEPS]
    assert run.summary["perfd/final/step_time_s"] == 1.0
    assert [reported["title"] for reported in run.alerts] == ["Slow"]
    [artifact] = server.artifacts
    assert (artifact.run_id, artifact.kind) == ("llm-perfd", "perfd-report")
    assert json.loads(artifact.files[SUMMARY_FILE])["jobs"][0]["name"] == "llm"
    assert b"How job llm runs" in artifact.files[REPORT_FILE]


@pytest.mark.system
def test_online_the_jobs_own_run_is_written_beside_the_job_and_not_ended(server, online):
    config = WandbConfig(**online, run="same")
    job = opened("llm", WandbConfig(**online, run="sibling", run_id="llm"))
    perfd = opened("llm", config)
    perfd.send("llm", LogNumbers({"perfd/step": 7.0, "perfd/mfu_ratio": 0.4}))
    perfd.close_all()
    job.close_all()
    assert init_arguments("llm", config, {})["id"] == "llm"
    assert [row["perfd/mfu_ratio"] for row in server.runs["llm"].rows] == [0.4]
    assert server.runs["llm"].exit_codes == []


@pytest.mark.system
def test_online_a_run_is_resumed_after_a_restart_of_perfd(server, online):
    for step_number in (1.0, 2.0):
        run = opened("llm", WandbConfig(**online))
        run.send("llm", LogNumbers({"perfd/step": step_number}))
        run.close_all()
    [stored] = server.runs.values()
    assert [row["perfd/step"] for row in stored.rows] == [1.0, 2.0]
    assert [row["_step"] for row in stored.rows] == [0, 1]


@pytest.mark.system
@pytest.mark.parametrize("status", [401, 404])
def test_a_server_that_refuses_is_reported_in_a_sentence(server, online, status):
    server.status = status
    with pytest.raises(OSError, match=str(status)):
        opened("llm", WandbConfig(**online))


@pytest.mark.system
def test_without_a_key_nobody_is_asked_for_one(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    with pytest.raises(OSError, match="No API key configured"):
        opened("llm", WandbConfig(mode="online", directory=str(tmp_path)))


@pytest.mark.system
def test_rows_wait_until_a_server_that_fails_is_well_again(server, online, tmp_path):
    server.status = 500
    clock = VirtualClock(round(START_S * 1e9))
    with watched(tmp_path, clock, **{**online, "timeout_s": 2.0}) as running:
        until(lambda: 'perfd_exporter_retries_total{exporter="wandb"} 1' in ticked(running))
        server.status = 200
        until(lambda: 'perfd_exporter_pending{exporter="wandb"} 0' in ticked(running, clock))
    assert [row["perfd/step"] for row in server.runs["llm-perfd"].rows] == [STEPS]


@pytest.mark.system
def test_a_server_that_hangs_holds_up_neither_rounds_nor_the_end_and_no_process_stays(
    online, server, tmp_path
):
    clock = VirtualClock(round(START_S * 1e9))
    with watched(tmp_path, clock, stop_within_s=10.0, **{**online, "timeout_s": 20.0}) as running:
        until(lambda: 'perfd_exporter_sent_total{exporter="wandb"} 2' in ticked(running, clock))
        server.hang = True
        for _ in range(100):
            running.tick()
        assert 'perfd_exporter_rounds_total{exporter="wandb"}' in ticked(running)
        started = [one for worker in workers() for one in (*worker.children(recursive=True), worker)]
        assert started
    assert until(lambda: not any(map(runs, started)))
    [path] = tmp_path.glob("wandb/run-*/*.wandb")
    # What was not uploaded is on disk, for `wandb sync`.
    assert Counter(record.WhichOneof("record_type") for record in records(path))["history"] == 1


@pytest.mark.system
@pytest.mark.parametrize("ending", [signal.SIGKILL, signal.SIGSTOP])
def test_a_run_whose_processes_are_killed_or_stopped_fails_and_leaves_nothing(server, online, ending):
    run = opened("llm", WandbConfig(**{**online, "timeout_s": 10.0}))
    [worker] = workers()
    everything = (*worker.children(recursive=True), worker)
    assert len(everything) > 1
    for process in everything:
        os.kill(process.pid, ending)
    with pytest.raises(OSError, match="W&B's process"):
        run.send("llm", LogNumbers({"perfd/step": 1.0}))
    assert until(lambda: not any(map(runs, everything)))


def workers():
    """W&B's processes that this process started; other tests may have left a browser or a server."""
    return [
        one for one in psutil.Process().children() if "perfd.exporters.wandb.wandb_worker" in one.cmdline()
    ]


def opened(job, config):
    """The run of a job, in a process of its own."""
    runs = WandbRuns()
    runs.open(job, config, {})
    return runs


@pytest.mark.system
def test_jobs_of_several_teams_share_one_process_with_a_key_project_and_tags_of_their_own(
    server, online, tmp_path
):
    runs = WandbRuns()
    jobs = [f"job{number}" for number in range(6)]
    for number, job in enumerate(jobs):
        key = tmp_path / f"key-{number % 2}"
        key.write_text(str(number % 2) * 40)
        options = {
            **online,
            "api_key_file": str(key),
            "project": f"p{number % 2}",
            "tags": [f"team{number % 2}"],
        }
        runs.open(job, WandbConfig(**options), {"perfd_job": job, "account": f"a{number % 2}"})
    [worker] = workers()
    for job in jobs:
        runs.send(job, LogNumbers({"perfd/step": float(job[3:])}))
    # Ending one keeps nobody waiting, and it can begin anew.
    runs.close(jobs[0])
    runs.send(jobs[1], LogNumbers({"perfd/step": 100.0}))
    runs.open(jobs[0], WandbConfig(**online), {})
    runs.send(jobs[0], LogNumbers({"perfd/step": 200.0}))
    assert workers() == [worker]
    runs.close_all()
    stored = [server.runs[f"{job}-perfd"] for job in jobs]
    assert [[row["perfd/step"] for row in run.rows] for run in stored] == [
        [0.0, 200.0],
        [1.0, 100.0],
        *([float(number)] for number in range(2, 6)),
    ]
    assert [(run.project, run.tags, run.keys) for run in stored[1:]] == [
        (f"p{number % 2}", [f"team{number % 2}"], {str(number % 2) * 40}) for number in range(1, 6)
    ]
    assert stored[3].config["perfd"]["value"] == {"perfd_job": "job3", "account": "a1"}


@pytest.mark.system
def test_a_team_that_is_refused_keeps_no_other_from_its_run_and_has_its_own_once_it_is_not(server, online):
    runs = WandbRuns()
    runs.open("good", WandbConfig(**online), {})
    server.status = 401
    with pytest.raises(OSError, match="401"):
        runs.open("bad", WandbConfig(**online), {})
    server.status = 200
    runs.send("good", LogNumbers({"perfd/step": 1.0}))
    runs.open("bad", WandbConfig(**online), {})
    runs.send("bad", LogNumbers({"perfd/step": 2.0}))
    runs.close_all()
    rows = {name: [row["perfd/step"] for row in run.rows] for name, run in server.runs.items()}
    assert rows == {"good-perfd": [1.0], "bad-perfd": [2.0]}


def runs(process):
    """Whether a process is there, and not only waits to be collected by its parent."""
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.mark.system
def test_what_was_handed_over_is_uploaded_even_when_perfd_is_killed(server, online):
    dying = (
        "import json, os, signal, sys, msgspec\n"
        "from perfd.config import WandbConfig\n"
        "from perfd.exporters.wandb.wandb_messages import LogNumbers\n"
        "from perfd.exporters.wandb.wandb_runs import WandbRuns\n"
        "runs = WandbRuns()\n"
        "runs.open('llm', msgspec.convert(json.loads(sys.argv[1]), WandbConfig), {})\n"
        "runs.send('llm', LogNumbers({'perfd/step': 5.0}))\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    ended = subprocess.run([sys.executable, "-c", dying, json.dumps(online)], check=False)
    assert ended.returncode == -signal.SIGKILL
    until(lambda: "llm-perfd" in server.runs and server.runs["llm-perfd"].exit_codes)
    assert [row["perfd/step"] for row in server.runs["llm-perfd"].rows] == [5.0]


@pytest.mark.parametrize(("job", "wanted"), [("llm", "llm"), ("a/b", "a-b-"), ("", "-"), ("é" * 300, "-")])
def test_the_id_of_a_run_is_one_that_wandb_takes(job, wanted):
    found = run_id(job, WandbConfig())
    assert found.startswith(wanted)
    assert len(found) <= 128
    assert run_id(job + "x", WandbConfig()) != found


def ticked(running, clock=None):
    """The page after another round, and after any wait of the exporter's when there is a clock."""
    if clock is not None:
        clock.advance(60.0)
    running.tick()
    return running.page().decode()

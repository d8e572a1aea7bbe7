"""From the end of a capture to what its traces say, where the aggregator can read them."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from exporters.support import until

from perfd.aggregator.aggregator import Aggregator
from perfd.aggregator.captures.capture_reports import CaptureReports
from perfd.aggregator.captures.readable_traces import lacks_report, readable_traces
from perfd.aggregator.captures.trace_document import TraceDocument
from perfd.aggregator.history import HistoryStore, capture_row
from perfd.aggregator.history.sqlite import SqliteDatabase
from perfd.analysis.findings import Kind
from perfd.capture.capture_routes import StartBody
from perfd.capture.node.process_environment import runs
from perfd.capture.policy.capture_record import Capture, CaptureReport, Participant
from perfd.cli import main
from perfd.clock import SystemClock
from perfd.config import AggregatorConfig, CaptureProfile, HistoryConfig, RulesConfig
from perfd.model import (
    CaptureFile,
    CaptureRequest,
    CaptureState,
    CaptureStatus,
    CaptureTool,
    GpuInfo,
    JobDescription,
    RankPlacement,
    SampleTable,
    Scope,
    TrainingStep,
)
from perfd.trace.diagnosis.trace_analysis import analyse
from perfd.trace.diagnosis.trace_bottleneck import diagnose
from perfd.trace.diagnosis.trace_json import to_json
from perfd.trace.readers.trace_files import read_traces
from tests.support import example_traces
from tests.support.fake_agent import FakeAgent
from tests.support.traces import COMPUTE, COPY, NCCL, Op, kineto, write_json


def running(tmp_path: Path, **changes: Any) -> Aggregator:
    config = AggregatorConfig(
        listen="127.0.0.1:0",
        http_listen="127.0.0.1:0",
        history=HistoryConfig(path=str(tmp_path / "history.sqlite")),
        capture_profiles={"default": CaptureProfile(tool="kineto")},
        # On a slow machine an alert would start a capture of its own before the test's.
        rules=RulesConfig(builtin=False),
        **changes,
    )
    aggregator = Aggregator(config, manual=True)
    aggregator.start()
    return aggregator


def trace(path: Path, rank: int = 0) -> CaptureFile:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, kineto([Op(COMPUTE, 0, 60)], rank=rank, steps={1: (0, 100)}))
    return CaptureFile(path=str(path), size_bytes=path.stat().st_size)


def capture(aggregator: Aggregator, capture_id: str, *files: CaptureFile) -> None:
    """Let an agent do what it is asked, which leaves these files."""
    with FakeAgent(aggregator.grpc_address) as agent:
        agent.hello(tools=(CaptureTool.KINETO,))
        agent.send(TrainingStep(job="llm", step=1, step_time_s=1.0), RankPlacement(job="llm", rank=0, gpu=0))
        aggregator.tick()
        aggregator.start_capture(StartBody(job="llm", id=capture_id))
        while not isinstance(agent.receive(), CaptureRequest):
            pass
        agent.say(
            CaptureStatus(
                capture_id=capture_id, state=CaptureState.DONE, time_unix_ns=1, ranks=(0,), files=files
            )
        )
        until(lambda: aggregator.captures()[0]["state"] == "done")


def test_a_capture_that_ends_is_analysed_and_its_report_outlives_the_aggregator(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    aggregator = running(tmp_path)
    try:
        capture(aggregator, "c1", trace(tmp_path / "c1" / "rank0.trace.json"))
        until(lambda: (aggregator.captures()[0]["report"] or {}).get("perfetto_path") is not None)
        (reported,) = aggregator.captures()
        assert main(["capture", "show", "c1", "--aggregator", str(aggregator.http_address)]) == 0
    finally:
        aggregator.stop()
    assert reported["report"]["path"] == str(tmp_path / "c1" / "perfd.report.html")
    verdict = "The host may limit this job"
    assert reported["report"]["words"].startswith(f"{verdict}. The GPU runs nothing for 40.0% of the window")
    assert reported["report"]["made_unix_s"] >= reported["ended_unix_s"]
    assert f"{verdict}." in capsys.readouterr().out
    assert verdict in (tmp_path / "c1" / "perfd.report.html").read_text(encoding="utf-8")
    assert json.loads((tmp_path / "c1" / "perfd.trace.json").read_bytes())["schema"] == "perfd.trace/2"
    made = sorted(path.name for path in (tmp_path / "c1").iterdir())
    assert made == ["perfd.perfetto-trace.gz", "perfd.report.html", "perfd.trace.json", "rank0.trace.json"]
    assert all((tmp_path / "c1" / name).stat().st_mode & 0o077 == 0 for name in made[:3])
    again = running(tmp_path, capture_reports=False)
    assert again.captures() == [reported]
    again.stop()


def launching_late(path: Path) -> CaptureFile:
    """Three steps of 100 ms in which the GPU works in spells of 70 us, and waits 30 for the next launch."""
    operations = [Op(COMPUTE, start, start + 70, launched=start - 1) for start in range(0, 300_000, 100)]
    steps = {number: (1e5 * number, 1e5 * (number + 1)) for number in range(3)}
    path.parent.mkdir(exist_ok=True)
    write_json(path, kineto(operations, steps=steps))
    return CaptureFile(path=str(path), size_bytes=path.stat().st_size)


def captured_meanwhile(agent: FakeAgent, aggregator: Aggregator, file: CaptureFile, now_ns: int) -> None:
    """The job goes on in steps of 0.1 s while an agent takes a capture that leaves this file."""
    aggregator.start_capture(StartBody(job="llm", id="c1"))
    while not isinstance(agent.receive(), CaptureRequest):
        pass
    agent.say(
        CaptureStatus(
            capture_id="c1",
            state=CaptureState.DONE,
            time_unix_ns=now_ns,
            ranks=(0,),
            files=(file,),
            started_unix_ns=now_ns - 10**9,
            stopped_unix_ns=now_ns,
        )
    )
    until(lambda: aggregator.captures()[0]["report"] is not None)
    assert aggregator.captures()[0]["report"]["path"] is not None, aggregator.captures()[0]["report"]["words"]


def test_a_capture_that_was_read_shows_why_gpus_idle_as_long_as_the_job_stays_as_it_was(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    aggregator = running(tmp_path)
    now_ns = SystemClock().unix_ns()
    url = aggregator.http_address

    def reported(*arguments: str) -> str:
        assert main([*arguments, "--aggregator", str(url)]) == 0
        return capsys.readouterr().out

    try:
        with FakeAgent(aggregator.grpc_address, node="n0") as agent:
            agent.hello(tools=(CaptureTool.KINETO,))
            agent.send(RankPlacement(job="llm", rank=0, gpu=0), *steps(now_ns, 1, 40, 0.1))
            agent.send(*(busy(now_ns - 50_000_000 - step * 100_000_000, 0.7) for step in range(39, -1, -1)))
            aggregator.tick()
            assert aggregator.summary("llm")[0].bottleneck.kind is Kind.HOST_BOUND
            captured_meanwhile(
                agent, aggregator, launching_late(tmp_path / "c1" / "rank0.trace.json"), now_ns
            )
            aggregator.tick()
            live = reported("diagnose")
            (job,) = json.loads(reported("diagnose", "--json"))["jobs"]
            report = get(f"http://{url}/reports/jobs/llm")
            # The same job, half as fast: what the capture showed is of another pace.
            end_ns = now_ns + 30 * 10**9
            agent.send(*steps(end_ns, 41, 200, 0.2))
            agent.send(*(busy(end_ns - 50_000_000 - step * 200_000_000, 0.7) for step in range(199, -1, -1)))
            aggregator.tick()
            slower = reported("diagnose")

            def changed() -> bool:
                aggregator.tick()
                return "The host may limit this job" in reported("diagnose")

            # A headline is held for some seconds after another one is found.
            until(changed)
    finally:
        aggregator.stop()
    assert live.splitlines()[2].startswith("Kernel launches limit this job (measured)")
    assert "the host has not launched (capture c1, " in live
    assert job["bottleneck"]["kind"] == "launch_bound"
    assert job["capture"]["used"] is True
    assert job["capture"]["shares"]["launch_ratio"] == pytest.approx(0.3, abs=0.01)
    assert "the host has not launched (capture c1, " in report
    assert "c1, is not used: steps took 100.0 ms meanwhile and take 200.0 ms now." in slower


def get(address: str) -> str:
    with urllib.request.urlopen(address, timeout=30) as answer:
        text: str = answer.read().decode()
    return text


def steps(end_ns: int, first: int, count: int, step_time_s: float) -> list[TrainingStep]:
    """So many steps of that length, the last of which ends then."""
    return [
        TrainingStep(
            job="llm",
            step=first + at,
            step_time_s=step_time_s,
            time_unix_ns=end_ns - round((count - 1 - at) * step_time_s * 1e9),
        )
        for at in range(count)
    ]


def busy(time_unix_ns: int, ratio: float) -> SampleTable:
    return SampleTable(
        scope=Scope.GPU, times_unix_ns=[time_unix_ns], entities=["0"], columns={"busy_ratio": [ratio]}
    )


def test_what_a_trace_shows_to_be_hidden_is_taken_off_the_communication_that_nccl_shows(
    tmp_path: Path,
) -> None:
    path = tmp_path / "c1" / "rank0.trace.json"
    path.parent.mkdir()
    half_covered = [Op(COMPUTE, 0, 60e3), Op(NCCL, 40e3, 80e3, stream=9)]
    write_json(path, kineto(half_covered, steps={1: (0, 1e5)}))
    aggregator = running(tmp_path)
    now_ns = SystemClock().unix_ns()
    try:
        with FakeAgent(aggregator.grpc_address, node="n0") as agent:
            agent.hello(tools=(CaptureTool.KINETO,))
            agent.send(RankPlacement(job="llm", rank=0, gpu=0), *steps(now_ns, 1, 40, 0.1))
            agent.send(*(in_nccl(second, 0.4 * second) for second in range(1, 4)))
            aggregator.tick()
            file = CaptureFile(path=str(path), size_bytes=path.stat().st_size)
            captured_meanwhile(agent, aggregator, file, now_ns)
        assert aggregator.captures()[0]["report"]["overlap_ratio"] == pytest.approx(0.5)
        aggregator.tick()
        (summary,) = aggregator.summary("llm")
    finally:
        aggregator.stop()
    assert summary.communication.share_ratio == pytest.approx(0.4)
    assert summary.communication.exposed_ratio == pytest.approx(0.2)
    assert (summary.communication.exposed_source or "").startswith("capture c1, ")


def test_a_report_has_the_mfu_that_the_job_s_arithmetic_means(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "c1" / "rank0.trace.json"
    path.parent.mkdir()
    write_json(path, kineto([Op(COMPUTE, 0, 60e3)], steps={1: (0, 1e5)}))
    file = CaptureFile(path=str(path), size_bytes=path.stat().st_size)
    aggregator = running(tmp_path)
    now_ns = SystemClock().unix_ns()
    try:
        with FakeAgent(aggregator.grpc_address, node="n0") as agent:
            agent.hello(tools=(CaptureTool.KINETO,))
            agent.send(
                JobDescription(job="llm", framework="megatron", precision="fp8"),
                RankPlacement(job="llm", rank=0, gpu=0),
                GpuInfo(index=0, name="NVIDIA H200"),
                *(replace(step, flops_per_s_per_gpu=400e12) for step in steps(now_ns, 1, 40, 0.1)),
            )
            aggregator.tick()
            (live,) = aggregator.summary("llm")
            captured_meanwhile(agent, aggregator, file, now_ns)
        document = json.loads((path.parent / "perfd.trace.json").read_bytes())
        (path.parent / "perfd.trace.json").unlink()
        words = ["capture", "show", "c1", "--analyze", "--aggregator", str(aggregator.http_address)]
        assert main(words) == 0
    finally:
        aggregator.stop()
    # 40 TFLOP in a step of 100 ms, against the dense peak of fp8: both know the same.
    assert document["model_use"]["mfu_ratio"] == pytest.approx(live.efficiency.mfu_ratio)
    assert document["model_use"]["mfu_ratio"] == pytest.approx(400 / 1979, rel=1e-3)
    assert document["model_use"]["precision"] == "fp8"
    by_hand = json.loads((path.parent / "perfd.trace.json").read_bytes())
    assert by_hand["model_use"] == document["model_use"]


def test_the_overlap_of_a_capture_is_what_compute_covers_and_not_copies_as_of_each_trace(
    tmp_path: Path,
) -> None:
    half_covered = [
        Op(COMPUTE, 0, 60e3),
        Op(NCCL, 40e3, 80e3, stream=9),
        Op(COPY, 60e3, 70e3, stream=8),
    ]
    path = tmp_path / "rank0.trace.json"
    write_json(path, kineto(half_covered, steps={1: (0, 1e5)}))
    analysis = analyse(read_traces([path]))
    said = msgspec.convert(to_json(analysis, diagnose(analysis)), TraceDocument)
    (rank,) = analysis.ranks
    assert said.overlap_ratio() == rank.whole.overlap_ratio == pytest.approx(0.5)


def test_of_a_slow_rank_the_words_of_a_capture_name_the_cause(tmp_path: Path) -> None:
    example_traces.main(tmp_path)
    analysis = analyse(read_traces(sorted(tmp_path.iterdir())))
    said = msgspec.convert(to_json(analysis, diagnose(analysis)), TraceDocument)
    assert said.words().startswith(
        "A straggler limits this job. Rank 2 computes 525.6 ms of 600.0 ms, its peers 396.0 ms"
    )


def in_nccl(second: int, busy_s: float) -> SampleTable:
    columns = {"nccl_busy_s": [busy_s], "nccl_operations": [0.0], "nccl_lost_operations": [0.0]}
    return SampleTable(scope=Scope.RANK, times_unix_ns=[second * 10**9], entities=["llm/0"], columns=columns)


def test_a_trace_that_cannot_be_read_is_reported_and_leaves_nothing(tmp_path: Path) -> None:
    cut = trace(tmp_path / "c1" / "rank0.trace.json")
    Path(cut.path).write_bytes(Path(cut.path).read_bytes()[:-40])
    aggregator = running(tmp_path)
    try:
        capture(aggregator, "c1", cut)
        until(lambda: aggregator.captures()[0]["report"] is not None)
        (reported,) = aggregator.captures()
    finally:
        aggregator.stop()
    assert reported["report"]["path"] is None
    assert reported["report"]["words"].startswith(f"No report could be made: {cut.path}: the trace is cut")
    assert [path.name for path in (tmp_path / "c1").iterdir()] == ["rank0.trace.json"]


def ended(capture_id: str, *files: CaptureFile) -> Capture:
    return Capture(
        capture_id=capture_id,
        job="llm",
        tool=CaptureTool.KINETO,
        profile="default",
        requested_unix_s=1.0,
        start_unix_s=1.0,
        max_duration_s=1.0,
        state=CaptureState.DONE,
        participants=[Participant(node="n1", rank=0, state=CaptureState.DONE, files=files)],
    )


def test_the_traces_are_those_of_the_folder_where_most_ranks_are(tmp_path: Path) -> None:
    (tmp_path / "share").mkdir()
    own = trace(tmp_path / "c1" / "rank0.trace.json")
    shared = [trace(tmp_path / "share" / "c1" / f"n{rank}-rank{rank}.trace.json", rank) for rank in (0, 1)]
    found = readable_traces(ended("c1", own, *shared))
    assert [str(path) for path in found] == [file.path for file in shared]


def test_a_rank_whose_trace_holds_nothing_of_a_gpu_does_not_keep_the_others_from_being_read(
    tmp_path: Path,
) -> None:
    works, idles = (trace(tmp_path / "c1" / f"rank{rank}.trace.json", rank) for rank in (0, 1))
    empty = Participant(node="n1", rank=1, state=CaptureState.EMPTY, files=(idles,))
    capture = ended("c1", works)
    found = readable_traces(replace(capture, participants=[*capture.participants, empty]))
    assert [str(path) for path in found] == [works.path]
    assert readable_traces(replace(capture, participants=[empty])) == ()


def test_what_agents_may_not_name_is_not_read(tmp_path: Path) -> None:
    there = trace(tmp_path / "c1" / "rank0.trace.json")
    (tmp_path / "c1" / "rank1.trace.json").symlink_to(there.path)
    link = CaptureFile(path=str(tmp_path / "c1" / "rank1.trace.json"), size_bytes=1)
    assert readable_traces(ended("c2", there)) == ()
    assert readable_traces(ended("c1", link)) == ()
    assert readable_traces(ended("c1", CaptureFile(path="c1/rank0.trace.json", size_bytes=1))) == ()
    climbing = CaptureFile(path=str(tmp_path / "x/../c1/rank0.trace.json"), size_bytes=1)
    assert readable_traces(ended("c1", climbing)) == ()
    stacks = CaptureFile(path=str(tmp_path / "c1" / "rank0.stacks.json"), size_bytes=1)
    assert readable_traces(ended("c1", stacks)) == ()


def hanging(pid_file: Path) -> Sequence[str]:
    """In place of perfd, a program that never ends."""
    program = f"import os, time; open({str(pid_file)!r}, 'w').write(str(os.getpid())); time.sleep(3600)"
    return (sys.executable, "-c", program)


def test_an_analysis_that_does_not_end_is_ended(tmp_path: Path) -> None:
    reported: list[CaptureReport] = []
    reports = CaptureReports(
        lambda _, report: reported.append(report),
        SystemClock(),
        timeout_s=0.2,
        perfd=hanging(tmp_path / "pid"),
    )
    reports.submit(ended("c1", trace(tmp_path / "c1" / "rank0.trace.json")))
    until(lambda: reported)
    reports.stop()
    assert [(one.path, one.words) for one in reported] == [(None, "The traces were not read within 0.2 s.")]
    assert [path.name for path in (tmp_path / "c1").iterdir()] == ["rank0.trace.json"]


def test_a_stop_leaves_no_analysis_running_and_no_result(tmp_path: Path) -> None:
    reported: list[CaptureReport] = []
    reports = CaptureReports(
        lambda _, report: reported.append(report), SystemClock(), perfd=hanging(tmp_path / "pid")
    )
    reports.submit(ended("c1", trace(tmp_path / "c1" / "rank0.trace.json")))
    pid = int(until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text()))
    reports.stop()
    reports.stop()
    until(lambda: not runs(Path("/proc"), pid))
    until(lambda: [path.name for path in (tmp_path / "c1").iterdir()] == ["rank0.trace.json"])
    assert reported == []


def unpacking(pid_file: Path) -> Sequence[str]:
    """In place of perfd, a program that leaves something behind, and has started another one."""
    program = (
        "import subprocess, sys, tempfile, time; from pathlib import Path; tempfile.mkdtemp(prefix='left-');"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(3600)']);"
        f"report = Path({str(pid_file)!r} + '.part');"
        f"report.write_text(f'{{child.pid}} {{tempfile.gettempdir()}}'); report.rename({str(pid_file)!r});"
        "time.sleep(3600)"
    )
    return (sys.executable, "-c", program)


def test_an_analysis_that_is_ended_leaves_neither_programs_nor_what_it_unpacked(tmp_path: Path) -> None:
    reports = CaptureReports(lambda *_: None, SystemClock(), perfd=unpacking(tmp_path / "reported"))
    reports.submit(ended("c1", trace(tmp_path / "c1" / "rank0.trace.json")))
    pid, folder = until(
        lambda: (tmp_path / "reported").exists() and (tmp_path / "reported").read_text().split()
    )
    assert list(Path(folder).glob("left-*"))
    reports.stop()
    until(lambda: not runs(Path("/proc"), int(pid)))
    until(lambda: not Path(folder).exists())


HANGING = """
import os, subprocess, sys, tempfile, time
from pathlib import Path

if "analyze" in sys.orig_argv:
    tempfile.mkdtemp(prefix="left-")
    child = subprocess.Popen(["sleep", "3600"])
    report = Path(os.environ["REPORTED"])
    part = report.with_suffix(".part")
    part.write_text(f"{os.getpid()} {child.pid} {tempfile.gettempdir()}")
    part.rename(report)
    time.sleep(3600)
"""
"""Python runs it at its start, so that analyses hang with all that they have started."""


def captured_over_http(aggregator: subprocess.Popen[str], file: CaptureFile) -> None:
    """Let an agent do what an aggregator of its own process asks, which leaves this file."""
    assert aggregator.stdout is not None
    serving = next(json.loads(line) for line in aggregator.stdout if "The aggregator serves" in line)
    request = urllib.request.Request(
        f"{serving['page']}api/v1/captures",
        data=json.dumps({"job": "llm", "id": "c1"}).encode(),
        headers={"Content-Type": "application/json"},
    )

    def asked() -> bool:
        try:
            urllib.request.urlopen(request).close()
        except urllib.error.HTTPError as error:
            if "There is no job" not in error.read().decode():
                raise
            return False  # Its next round knows it.
        return True

    with FakeAgent(serving["agents"]) as agent:
        agent.hello(tools=(CaptureTool.KINETO,))
        agent.send(TrainingStep(job="llm", step=1, step_time_s=1.0), RankPlacement(job="llm", rank=0, gpu=0))
        until(asked)
        while not isinstance(agent.receive(), CaptureRequest):
            pass
        agent.say(
            CaptureStatus(capture_id="c1", state=CaptureState.DONE, time_unix_ns=1, ranks=(0,), files=(file,))
        )
        agent.send(TrainingStep(job="llm", step=2, step_time_s=1.0))


def test_an_aggregator_that_is_killed_takes_its_analysis_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "hanging").mkdir()
    (tmp_path / "hanging" / "sitecustomize.py").write_text(HANGING)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "hanging"))
    monkeypatch.setenv("REPORTED", str(tmp_path / "reported"))
    (tmp_path / "aggregator.yaml").write_text(
        "{listen: '127.0.0.1:0', http_listen: '127.0.0.1:0', capture_profiles: {default: {tool: kineto}}}"
    )
    words = ["aggregator", "--log-json", "--config", str(tmp_path / "aggregator.yaml")]
    command = [sys.executable, "-m", "perfd", *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        try:
            captured_over_http(process, trace(tmp_path / "c1" / "rank0.trace.json"))
            reported = until(lambda: (tmp_path / "reported").exists() and (tmp_path / "reported").read_text())
        finally:
            process.kill()
    *pids, folder = reported.split()
    until(lambda: not any(runs(Path("/proc"), int(pid)) for pid in pids))
    until(lambda: not Path(folder).exists())
    until(lambda: [path.name for path in (tmp_path / "c1").iterdir()] == ["rank0.trace.json"])


def test_an_analysis_that_says_too_much_is_not_read(tmp_path: Path) -> None:
    reported: list[CaptureReport] = []
    shouting = (sys.executable, "-c", "import os; os.truncate('/proc/self/fd/1', (64 << 20) + 1)")
    reports = CaptureReports(lambda _, report: reported.append(report), SystemClock(), perfd=shouting)
    reports.submit(ended("c1", trace(tmp_path / "c1" / "rank0.trace.json")))
    until(lambda: reported)
    reports.stop()
    assert [(one.path, one.words) for one in reported] == [
        (None, "The analysis of the traces has more than 64 MiB.")
    ]
    assert [path.name for path in (tmp_path / "c1").iterdir()] == ["rank0.trace.json"]


def test_an_analysis_that_crashes_is_one_sentence_and_its_traceback_is_in_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    reported: list[CaptureReport] = []
    crashing = (sys.executable, "-c", "raise KeyError('what was in the file')")
    reports = CaptureReports(lambda _, report: reported.append(report), SystemClock(), perfd=crashing)
    reports.submit(ended("c1", trace(tmp_path / "c1" / "rank0.trace.json")))
    until(lambda: reported)
    reports.stop()
    assert [one.words for one in reported] == [
        "No report could be made: unexpected content (KeyError); the log of the aggregator has the details."
    ]
    assert any("Traceback" in getattr(record, "stderr", "") for record in caplog.records)


@pytest.mark.parametrize("words", [None, "Made before the restart."])
def test_what_a_restart_interrupted_is_made_after_it(tmp_path: Path, words: str | None) -> None:
    page = str(tmp_path / "c1" / "perfd.report.html")
    stored = replace(
        ended("c1", trace(tmp_path / "c1" / "rank0.trace.json")),
        ended_unix_s=SystemClock().unix_ns() / 1e9,
        report=CaptureReport(path=page, words=words, made_unix_s=1.0) if words else None,
    )
    history = HistoryStore(SqliteDatabase(tmp_path / "history.sqlite"))
    history.submit([capture_row("c1", 1.0, msgspec.json.encode(stored))])
    assert history.close()
    audit = tmp_path / "audit.jsonl"
    again = running(tmp_path, audit_file=str(audit))
    try:
        again.tick()
        until(lambda: (again.captures()[0]["report"] or {}).get("perfetto_path") is not None)
        (found,) = again.captures()
    finally:
        again.stop()
    assert found["report"]["perfetto_path"] == str(tmp_path / "c1" / "perfd.perfetto-trace.gz")
    assert (found["report"]["words"] == words) == bool(words)
    assert "capture requested" not in audit.read_text(encoding="utf-8")


def test_captures_that_ended_long_before_a_restart_are_not_read_again() -> None:
    lately = replace(ended("c1"), ended_unix_s=100.0)
    assert [lacks_report(lately, since) for since in (100.0, 100.5)] == [True, False]
    unread = replace(lately, report=CaptureReport(path=None, words="The trace is cut.", made_unix_s=1.0))
    assert not lacks_report(unread, 0.0)


def test_an_operator_may_have_no_reports(tmp_path: Path) -> None:
    aggregator = running(tmp_path, capture_reports=False)
    try:
        capture(aggregator, "c1", trace(tmp_path / "c1" / "rank0.trace.json"))
    finally:
        aggregator.stop()
    assert not [thread for thread in threading.enumerate() if thread.name == "perfd-reports"]
    assert aggregator.captures()[0]["report"] is None


def test_a_file_for_perfetto_that_is_too_large_to_be_served_is_not_offered(tmp_path: Path) -> None:
    program = (
        "import os, sys; words = sys.argv[1:]\n"
        "if words[0] == 'analyze': print('{}')\n"
        "else: os.truncate(words[words.index('--perfetto') + 1], int(os.environ['SIZE']))"
    )
    for name, most in (("fits", 64 << 20), ("large", (64 << 20) + 1)):
        reported: list[CaptureReport] = []
        perfd = ("env", f"SIZE={most}", sys.executable, "-c", program)
        reports = CaptureReports(lambda _, report, to=reported: to.append(report), SystemClock(), perfd=perfd)
        for capture_id in (name, "next"):
            reports.submit(ended(capture_id, trace(tmp_path / name / capture_id / "rank0.trace.json")))
        # The next capture is read after all files of the one before.
        until(lambda: any("next" in str(one.path) for one in reported))  # noqa: B023  (called here)
        reports.stop()
        paths = [one.perfetto_path for one in reported if f"/{name}/{name}/" in str(one.path)]
        file = tmp_path / name / name / "perfd.perfetto-trace.gz"
        assert paths == ([None, str(file)] if name == "fits" else [None])
        assert file.exists() == (name == "fits")

"""Captures with Kineto, with processes that poll as libkineto does."""

import json
import os
import socket
import stat
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from capture.conftest import Node, request

from perfd.capture.kineto.at_exit import with_wait_at_exit
from perfd.capture.kineto.client_registry import ConfigDelivery
from perfd.capture.kineto.config_text import parse
from perfd.capture.kineto.daemon_socket import CLIENT_PREFIX, KinetoEndpoint
from perfd.capture.kineto.kineto_tool import KinetoOptions, KinetoTiming, KinetoTool
from perfd.capture.node.job_guards import JobProgress
from perfd.clock import SystemClock
from perfd.model import CaptureCancel, CaptureState, CaptureTool, RankPlacement
from tests.support import kineto_processes
from tests.support.kineto_processes import Habits

QUICK = KinetoTiming(tick_s=0.05, margin_s=0.4, file_s=1.5)


@dataclass
class Job:
    """Ranks of a job that poll, and the tool that answers them."""

    node: Node
    directory: Path
    traces: Path
    options: KinetoOptions = field(default_factory=lambda: KinetoOptions(warmup_s=0))
    placements: list = field(default_factory=list)
    tool: KinetoTool | None = None

    def rank(self, *, placed=True, environment=None, **habits):
        process = kineto_processes.start(
            Habits(socket_directory=str(self.directory), **habits),
            {"KINETO_ONDEMAND_TRACE_DIR": str(self.traces), **(environment or {})},
        )
        self.node.jobs.append(process)
        if placed:
            rank = len(self.placements)
            self.placements.append(RankPlacement(job="llama", rank=rank, pid=process.pid))
        return process

    def executor(self, run=None):
        self.endpoint = KinetoEndpoint(self.directory, SystemClock())
        self.tool = KinetoTool(
            self.endpoint,
            placements=lambda job: self.placements if job == "llama" else (),
            clock=SystemClock(),
            options=self.options,
            timing=QUICK,
            run=run,
        )
        return self.node.executor(tools=[self.tool])

    def capture(self, *, run=None, polling=None, **changes):
        executor = self.executor(run)
        self.until_polled(len(self.placements) if polling is None else polling)
        executor.handle(request(tool=CaptureTool.KINETO, **changes))
        return executor

    def until_polled(self, count):
        """Until that many processes have polled often enough to know their period."""
        self.node.until(lambda: sum(c.period_s < 5 for c in self.endpoint.clients()) >= count)

    def finals(self, count):
        """The outcome of so many ranks, by rank."""
        ends = {}
        while len(ends) < count:
            status = self.node.next_status()
            if status.state.final:
                ends.update(dict.fromkeys(status.ranks, status))
        return ends

    @property
    def leftovers(self):
        return [path.name for path in self.traces.iterdir()]


@pytest.fixture
def node(tmp_path):
    node = Node(directory=tmp_path, nsys=Path("/nowhere"))
    yield node
    node.end()


@pytest.fixture
def sockets():
    """A folder with a short path: those of sockets have 106 bytes at most."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


@pytest.fixture
def job(node, sockets, tmp_path):
    (tmp_path / "traces").mkdir()
    return Job(node=node, directory=sockets, traces=tmp_path / "traces")


def test_every_rank_leaves_a_private_trace_of_the_same_window(job):
    for _ in range(3):
        job.rank()
    job.capture()
    ends = job.finals(3)
    assert {end.state for end in ends.values()} == {CaptureState.DONE}
    for rank, end in ends.items():
        (file,) = end.files
        path = Path(file.path)
        assert path.parent == job.node.captures / "c1"
        assert path.name.startswith(f"rank{rank}_")
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert json.loads(path.read_text())["traceEvents"]
    assert job.leftovers == []


def test_the_start_leaves_every_process_time_to_poll(job):
    job.rank(poll_s=0.1)
    job.rank(poll_s=1.0)
    job.capture()
    assert {end.state for end in job.finals(2).values()} == {CaptureState.DONE}


def test_only_the_requested_rank_is_notified(job):
    job.rank()
    job.rank()
    job.capture(ranks=(1,))
    assert list(job.finals(1)) == [1]
    files = [path.name for path in (job.node.captures / "c1").iterdir()]
    assert sorted(name.partition("_")[0] for name in files) == ["capture.json", "rank1"]


def test_a_process_of_another_job_is_never_notified(job):
    stranger = job.rank(placed=False)
    job.rank()
    executor = job.capture()
    assert list(job.finals(1)) == [0]
    executor.handle(request("c2", tool=CaptureTool.KINETO, job="other"))
    assert "No process of job other" in job.node.until_state(CaptureState.REFUSED).reason
    assert stranger.poll() is None


def test_processes_of_a_run_are_traced_though_none_is_a_known_rank(job, tmp_path):
    ours = {"PERFD_RUN": str(tmp_path)}
    processes = [job.rank(placed=False, environment=ours) for _ in range(2)]
    job.rank(placed=False, environment={"PERFD_RUN": "theirs"})
    job.capture(run=str(tmp_path), polling=3)
    names = {Path(file.path).name for file in job.node.until_state(CaptureState.DONE).files}
    assert names == {f"process_{process.pid}.pt.trace.json" for process in processes}
    assert job.leftovers == []


def test_a_run_whose_processes_do_not_poll_is_refused_with_the_reason(job, tmp_path):
    process = subprocess.Popen(
        [sys.executable, "-c", "print(flush=True); import time; time.sleep(600)"],
        env={**os.environ, "PERFD_RUN": str(tmp_path)},
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    job.node.jobs.append(process)
    process.stdout.readline()
    job.capture(run=str(tmp_path), polling=0)
    refused = job.node.until_state(CaptureState.REFUSED)
    assert refused.reason.startswith(f"Process {process.pid} was started without KINETO_USE_DAEMON=1")


def test_a_process_that_a_rank_started_represents_it(job):
    inner = job.rank(placed=False)
    job.placements.append(RankPlacement(job="llama", rank=0, pid=os.getpid()))
    job.capture()
    (end,) = job.finals(1).values()
    assert end.state is CaptureState.DONE
    assert str(inner.pid) in end.files[0].path


def test_a_busy_profiler_is_refused_and_the_others_go_on(job):
    job.rank()
    job.rank(busy=True)
    job.capture()
    ends = job.finals(2)
    assert ends[0].state is CaptureState.DONE
    assert (ends[1].state, "is busy" in ends[1].reason) == (CaptureState.REFUSED, True)


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        ({"NSYS_PROFILING_SESSION_ID": "7"}, "CUPTI has one subscriber per process"),
    ],
)
def test_a_rank_under_nsys_is_refused_and_given_the_reason(job, environment, words):
    job.rank(environment=environment)
    job.capture()
    assert words in job.node.until_state(CaptureState.REFUSED).reason


def test_when_all_are_refused_each_rank_has_its_own_reason(job):
    job.rank(busy=True)
    job.rank(environment={"NSYS_PROFILING_SESSION_ID": "7"})
    job.capture()
    ends = job.finals(2)
    assert ends[0].reason.startswith("Rank 0 is busy: its profiler traces")
    assert ends[1].reason.startswith("Rank 1 runs under `nsys launch`")


def test_ranks_that_are_gone_are_not_called_busy(job):
    process = job.rank(busy=True)
    executor = job.executor()
    job.until_polled(1)
    process.kill()
    process.wait()
    executor.handle(request(tool=CaptureTool.KINETO, ranks=(0,)))
    assert job.finals(1)[0].reason == "No process of rank 0 is known on this node."


def test_a_job_that_dies_before_anything_is_written_is_not_said_to_have_left_something(job):
    job.rank(dies=True)
    job.capture()
    (end,) = job.finals(1).values()
    assert (end.state, end.files) == (CaptureState.FAILED, ())
    assert end.reason.startswith("The process ended before it wrote its trace.")
    assert "kept" not in end.reason


def test_a_rank_that_does_not_poll_is_refused(job):
    job.executor()
    job.placements.append(RankPlacement(job="llama", rank=0, pid=os.getpid()))
    job.node.executors[0].handle(request(tool=CaptureTool.KINETO))
    assert "KINETO_USE_DAEMON=1" in job.node.until_state(CaptureState.REFUSED).reason


@pytest.mark.parametrize(
    ("habits", "state", "words"),
    [
        ({"gpu_work": False}, CaptureState.EMPTY, "no GPU work"),
        ({"cut_short": True}, CaptureState.FAILED, "incomplete"),
        ({"writes": False}, CaptureState.LATE, "did not start"),
        ({"dies": True}, CaptureState.FAILED, "ended before"),
        ({"links_to": "/etc/passwd"}, CaptureState.FAILED, "Cannot read"),
    ],
)
def test_what_goes_wrong_has_a_name(job, habits, state, words):
    job.rank()
    job.rank(**habits)
    job.capture()
    ends = job.finals(2)
    assert ends[0].state is CaptureState.DONE
    assert (ends[1].state, words in ends[1].reason) == (state, True), ends[1]
    assert job.leftovers == []


def test_after_a_rank_was_late_the_next_capture_begins_later(job):
    job.rank(writes=False)
    executor = job.capture()
    assert job.finals(1)[0].state is CaptureState.LATE
    first_s = job.tool.lead_s
    executor.handle(request("c2", tool=CaptureTool.KINETO))
    assert job.finals(1)[0].state is CaptureState.LATE
    assert job.tool.lead_s - first_s == pytest.approx(2 * QUICK.margin_s)


def test_without_gpus_a_trace_of_the_host_is_a_result_where_that_is_allowed(job):
    job.options = KinetoOptions(warmup_s=0, cpu_only=True)
    job.rank(gpu_work=False)
    job.capture()
    end = job.finals(1)[0]
    assert end.state is CaptureState.DONE
    assert end.reason == "The trace has host activity only: no GPU worked for the rank."


def test_a_common_start_that_is_too_near_makes_the_rank_late(job):
    job.rank(poll_s=1.0)
    job.executor()
    job.until_polled(1)
    now_unix_ns = SystemClock().unix_ns()
    job.node.executors[0].handle(request(tool=CaptureTool.KINETO, start_unix_ns=now_unix_ns))
    end = job.finals(1)[0]
    assert (end.state, "in time for the start" in end.reason) == (CaptureState.LATE, True)


def test_a_common_start_is_what_libkineto_gets(job):
    job.rank()
    start_unix_ns = SystemClock().unix_ns() + 3 * 10**9
    job.capture(start_unix_ns=start_unix_ns)
    end = job.finals(1)[0]
    assert end.state is CaptureState.DONE
    assert start_unix_ns - end.started_unix_ns < 1_000_000


def test_a_cancelled_capture_notifies_nobody_and_leaves_nothing(job):
    job.rank(poll_s=2.0)
    job.rank()
    executor = job.capture()
    job.node.until_state(CaptureState.ARMED)
    executor.handle(CaptureCancel(capture_id="c1", reason="enough"))
    assert {end.state for end in job.finals(2).values()} == {CaptureState.FAILED}
    assert job.leftovers == []


def test_steps_become_a_length_by_the_jobs_own_pace(job):
    job.rank()
    job.node.progress = JobProgress(step=5, step_times_s=[(4, 0.1), (5, 0.1)])
    job.capture(steps=3, max_duration_s=3600)
    assert job.finals(1)[0].state is CaptureState.DONE


def test_steps_become_a_length_by_the_pace_that_the_aggregator_knows_where_a_log_has_none(job):
    job.rank(environment=with_wait_at_exit(os.environ))
    job.capture(steps=3, max_duration_s=3600, step_time_s=0.1)
    assert job.finals(1)[0].state is CaptureState.DONE


def test_a_job_whose_end_is_unknown_is_traced_for_one_step_and_the_reason_says_so(job):
    job.rank()
    job.node.progress = JobProgress(step=5, step_times_s=[(4, 0.1), (5, 0.1)])
    job.capture(steps=3, max_duration_s=3600)
    end = job.finals(1)[0]
    assert end.state is CaptureState.DONE
    assert end.reason.startswith("Traced as short as possible: the job's end is unknown")


def test_a_process_that_waits_at_its_end_is_traced_for_all_steps_and_may_end_when_the_trace_is_there(job):
    job.rank(environment=with_wait_at_exit(os.environ))
    job.node.progress = JobProgress(step=5, step_times_s=[(4, 0.1), (5, 0.1)])
    job.capture(steps=3, max_duration_s=3600)
    job.node.until_state(CaptureState.RUNNING)
    assert [name.rpartition("-")[0] for name in job.leftovers if "until" in name] == ["perfd-kineto-until"]
    end = job.finals(1)[0]
    assert (end.state, "Traced" in end.reason) == (CaptureState.DONE, False)
    assert job.leftovers == []


def test_a_canceled_process_that_got_its_order_may_not_end_yet_and_one_that_did_not_may(job):
    executor = job.executor()
    reported = job.rank(environment=with_wait_at_exit(os.environ))
    job.rank(poll_s=60.0, environment=with_wait_at_exit(os.environ))
    job.node.until(lambda: len(job.endpoint.clients()) == 2)
    start_unix_ns = SystemClock().unix_ns() + 8 * 10**9
    executor.handle(request(tool=CaptureTool.KINETO, start_unix_ns=start_unix_ns))
    key = next(client.key for client in job.endpoint.clients() if client.host_pid == reported.pid)
    job.node.until(lambda: job.endpoint.delivery(key) is ConfigDelivery.DELIVERED)
    executor.handle(CaptureCancel(capture_id="c1", reason="enough"))
    job.finals(2)
    assert job.leftovers == [f"perfd-kineto-until-{reported.pid}"]


def test_an_end_that_comes_near_before_the_window_takes_the_order_back(job):
    job.rank(poll_s=2.0)
    job.node.progress = JobProgress(step=5, train_steps=10**6, step_times_s=[(5, 0.1)])
    job.capture(max_duration_s=5)
    job.node.until_state(CaptureState.ARMED)
    job.node.progress = JobProgress(step=10**6 - 1, train_steps=10**6, step_times_s=[(5, 0.1)])
    end = job.finals(1)[0]
    assert (end.state, end.files) == (CaptureState.FAILED, ())
    assert end.reason.startswith("The job ends in about 0 s (1 of 1000000 steps left at 0.1 s)")


def test_by_iterations_one_update_more_is_traced_than_steps_are_asked_for(job, monkeypatch):
    reported = []
    order = KinetoEndpoint.order

    def got(self, key, text, *, before_s):
        reported.append(parse(text))
        order(self, key, text, before_s=before_s)

    monkeypatch.setattr(KinetoEndpoint, "order", got)
    job.options = KinetoOptions(warmup_s=0, iteration_roundup=50)
    job.node.progress = JobProgress(step=5, train_steps=10**6, step_times_s=[(5, 0.1)])
    job.rank()
    job.capture(steps=3, max_duration_s=0.1)
    job.finals(1)
    assert reported[0]["ACTIVITIES_ITERATIONS"] == "4", "whole steps lie between two updates"


def test_a_name_that_is_taken_is_a_reason_and_no_crash(job):
    other = KinetoEndpoint(job.directory, SystemClock())
    other.start()
    job.rank()
    executor = job.executor()
    executor.handle(request(tool=CaptureTool.KINETO))
    assert "Another program answers libkineto" in job.node.until_state(CaptureState.REFUSED).reason
    other.stop()


def test_the_abstract_name_is_taken_once_too():
    first, second = (KinetoEndpoint(None, SystemClock(), name=f"perfd-test-{os.getpid()}") for _ in "12")
    first.start()
    second.start()
    assert (first.problem, "stop it" in second.problem) == ("", True)
    second.stop()
    first.stop()
    third = KinetoEndpoint(None, SystemClock(), name=f"perfd-test-{os.getpid()}")
    third.start()
    assert third.problem == ""
    third.stop()


def test_sockets_of_dead_clients_are_swept_and_the_living_stay(sockets):
    dead, alive = (sockets / f"{CLIENT_PREFIX}{name}" for name in ("dead", "alive"))
    (sockets / f"{CLIENT_PREFIX}file").write_text("mine")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as one:
        one.bind(str(dead))
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as other:
        other.bind(str(alive))
        endpoint = KinetoEndpoint(sockets, SystemClock())
        endpoint.start()
        other.sendto(b"garbage", str(sockets / "dynolog"))
        Node(directory=sockets, nsys=Path("/nowhere")).until(lambda: not dead.exists())
        assert alive.exists()
        endpoint.stop()
    assert sorted(path.name for path in sockets.iterdir()) == [alive.name, f"{CLIENT_PREFIX}file"]


def test_an_agent_that_was_killed_leaves_folders_that_the_next_one_removes(job):
    job.rank()
    executor = job.capture(max_duration_s=300)
    job.node.until_state(CaptureState.RUNNING)
    assert job.leftovers[0].startswith("perfd-kineto-")
    record = json.loads((job.node.captures / "c1" / "capture.json").read_text())
    fresh = KinetoTool(None, placements=lambda job: (), clock=SystemClock())
    fresh.abort(record["handles"])
    assert job.leftovers == []
    executor.handle(CaptureCancel(capture_id="c1", reason="enough"))
    job.finals(1)

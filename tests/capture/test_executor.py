"""Captures on a node, with real processes and a stand-in nsys."""

import os
import signal
import stat
import subprocess
import sys
import threading
from pathlib import Path

import msgspec
import pytest
from capture.conftest import request

from perfd.capture.node.capture_tool import Begun, CaptureOutcome, CapturePlan, CaptureTarget, Readiness, Tool
from perfd.capture.node.job_guards import JobProgress
from perfd.capture.node.process_environment import RUN_VARIABLE
from perfd.capture.nsys.nsys_cli import session_name
from perfd.capture.nsys.nsys_installation import inspect
from perfd.capture.nsys.nsys_tool import NsysOptions, NsysTool
from perfd.clock import SystemClock, VirtualClock
from perfd.errors import CaptureError
from perfd.model import CaptureCancel, CaptureState, CaptureTool

HOUR_S = 3600.0


def test_a_capture_leaves_a_private_report_with_kernels_of_every_rank(node):
    node.launch()
    node.executor().handle(request())
    armed = node.next_status()
    assert (armed.state, armed.ranks) == (CaptureState.ARMED, (0, 1))
    assert node.next_status().state is CaptureState.RUNNING
    done = node.next_status()
    assert (done.state, done.reason, done.ranks) == (CaptureState.DONE, "", (0, 1))
    assert done.started_unix_ns < done.stopped_unix_ns
    files = [Path(file.path) for file in done.files]
    assert [file.suffix for file in files] == [".nsys-rep", ".sqlite"]
    for file, said in zip(files, done.files, strict=True):
        assert file.parent == node.captures / "c1"
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert file.stat().st_size == said.size_bytes > 0
    assert stat.S_IMODE((node.captures / "c1").stat().st_mode) == 0o700
    assert node.session_state() == "Launched"


def test_a_capture_ends_after_the_agreed_whole_steps(node):
    node.launch()
    node.step = 10
    node.executor().handle(request(steps=3, max_duration_s=HOUR_S))
    node.until_state(CaptureState.RUNNING)
    node.step = 14
    assert node.until_state(CaptureState.DONE).reason == ""


@pytest.mark.parametrize(("settle_s", "first_step"), [(0, 1), (4, 3)])
def test_steps_while_the_profiler_switches_on_do_not_count(node, settle_s, first_step):
    node.launch()
    clock = VirtualClock()
    looks = []

    def a_step_a_second(job):
        if node.session_state() == "Collection":
            clock.advance(1)
            looks.append(job)
        return JobProgress(step=len(looks))

    executor = node.executor(options=NsysOptions(settle_s=settle_s), clock=clock, progress=a_step_a_second)
    executor.handle(request(steps=3, max_duration_s=HOUR_S))

    assert node.until_state(CaptureState.DONE).reason == ""
    assert len(looks) == first_step + 3 + 1


def test_the_time_cap_ends_a_capture_whose_steps_do_not_come(node):
    node.launch()
    node.step = 10
    node.executor().handle(request(steps=3, max_duration_s=0.1))
    assert "after 0 of 3 steps" in node.until_state(CaptureState.DONE).reason


def test_without_a_log_the_time_cap_is_the_length_and_says_so(node):
    node.launch()
    node.executor().handle(request(steps=3, max_duration_s=0.1))
    assert "No steps were seen" in node.until_state(CaptureState.DONE).reason


def test_only_the_asked_ranks_are_answered_for(node):
    node.launch()
    node.executor().handle(request(ranks=(1, 7)))
    assert node.next_status().ranks == (1,)
    assert node.next_status().state is CaptureState.RUNNING
    refused, done = node.next_status(), node.next_status()
    assert (refused.state, refused.ranks) == (CaptureState.REFUSED, (7,))
    assert "there is none, or it was not started in one" in refused.reason
    assert (done.state, done.ranks) == (CaptureState.DONE, (1,))


def test_one_session_per_rank_gives_one_report_per_rank(node):
    for rank in "01":
        node.launch(ranks=1, unique=rank)
    node.executor().handle(request())
    node.until_state(CaptureState.DONE)
    node.until_state(CaptureState.DONE)
    assert len(list((node.captures / "c1").glob("*.nsys-rep"))) == 2


def test_a_job_that_was_not_launched_under_nsys_is_refused_before_anything_is_started(node):
    node.launch(job="other")
    node.executor().handle(request())
    refused = node.next_status()
    assert refused.state is CaptureState.REFUSED
    assert "was not started under `nsys launch`" in refused.reason
    assert [session.name for session in node.cli.sessions()] == ["perfd.other.1"]
    assert not (node.captures / "c1").exists()


def test_a_session_that_vanished_before_the_start_leaves_none_behind(node):
    node.executor()
    with pytest.raises(Exception, match="ended before the capture could start"):
        node.cli.start("perfd.gone.1", node.directory / "x")
    assert node.cli.sessions() == []


def test_a_session_that_somebody_else_collects_in_is_refused_and_left_alone(node):
    node.launch()
    node.cli.start("perfd.llama.1", node.directory / "theirs")
    node.executor().handle(request())
    refused = node.next_status()
    assert refused.state is CaptureState.REFUSED
    assert "is in state Collection" in refused.reason
    assert node.session_state() == "Collection"


@pytest.mark.parametrize(
    ("how", "words"), [({"importer": False}, "no QdstrmImporter"), ({"importer_loads": False}, "libdw.so.1")]
)
def test_a_missing_importer_is_seen_before_a_capture_is_promised(make_node, how, words):
    node = make_node(**how)
    node.launch()
    node.executor().handle(request())
    assert words in node.until_state(CaptureState.REFUSED).reason
    assert node.session_state() == "Launched"


def test_a_collection_that_was_not_imported_never_passes_for_a_report(make_node):
    node = make_node(imports=False)
    node.launch()
    node.executor().handle(request())
    status = node.until_state(CaptureState.FAILED)
    assert "left only a .qdstrm: Importer error status" in status.reason
    assert [Path(file.path).suffix for file in status.files] == [".qdstrm"]
    assert node.session_state() == "Launched"


def test_a_report_without_gpu_work_is_empty(make_node):
    node = make_node(kernels_per_process=0)
    node.launch()
    node.executor().handle(request())
    assert node.until_state(CaptureState.EMPTY).reason == "The report has no GPU work."


def test_each_rank_is_judged_by_its_own_kernels(make_node):
    node = make_node(idle_ranks=(1,))
    node.launch(ranks=3)
    node.executor().handle(request())
    done, empty = node.until_state(CaptureState.DONE), node.next_status()
    assert (done.ranks, empty.state, empty.ranks) == ((0, 2), CaptureState.EMPTY, (1,))
    assert empty.reason == "The report has no GPU work of this rank."


def test_of_a_rank_with_several_processes_the_busiest_counts_its_steps(make_node):
    node = make_node()
    # A rank's loader or checkpoint writer may use the GPU, too; which one has the lowest pid is chance.
    kernels = (1, 4, 2)
    node.launch(processes=[f"RANK=0 NSYS_STAND_IN_MY_KERNELS={count}" for count in kernels])
    node.progress = progress(10, 1.0, 1.0, 1.0)
    node.executor().handle(request(steps=4))
    assert node.until_state(CaptureState.DONE).whole_steps == 4, "the stand-in's steps have one kernel"


class ScriptedTool(Tool):
    """A tool that captures ranks 0 and 1, and whose end is as the test says."""

    kind = CaptureTool.NSYS

    def __init__(self, *outcomes, error=None):
        self.outcomes = outcomes
        self.error = error
        self.collecting = False

    def available(self):
        return True

    def ready(self, job, ranks):
        return Readiness(targets=[CaptureTarget(handle="s", processes={1: 0, 2: 1})])

    def start(self, targets, plan):
        self.collecting = True
        (plan.directory / "half").write_text("x")
        return Begun()

    def alive(self, targets):
        return True

    def stop(self, targets, plan):
        if self.error:
            raise self.error
        return self.outcomes

    def abort(self, handles):
        self.collecting = False


@pytest.mark.parametrize(
    ("named", "empty"), [([[0]], (1,)), ([[1]], (0,)), ([], (0, 1)), ([[0], [1]], None), ([[]], None)]
)
def test_a_rank_that_no_outcome_names_is_empty(node, named, empty):
    outcomes = [CaptureOutcome(state=CaptureState.DONE, ranks=ranks) for ranks in named]
    node.executor(tools=[ScriptedTool(*outcomes)]).handle(request())
    node.until_state(CaptureState.RUNNING)
    finals = [node.next_status() for _ in range(len(named) + (empty is not None))]
    assert [status.ranks for status in finals if status.state is CaptureState.EMPTY] == (
        [empty] if empty else []
    )
    assert sorted(rank for status in finals for rank in status.ranks) == ([] if named == [[]] else [0, 1])


class UnnamedProcesses(ScriptedTool):
    """Captures processes without a known rank, each with a state and its whole steps."""

    def stop(self, targets, plan):
        return [
            self.outcome(plan.directory / f"process_{pid}", *end) for pid, end in enumerate(self.outcomes)
        ]

    @staticmethod
    def outcome(file, state, whole_steps=None):
        if state is CaptureState.EMPTY:
            return CaptureOutcome(state=state, ranks=(), reason="Nothing ran.")
        file.write_text("trace")
        return CaptureOutcome(
            state=state, ranks=(), files=[file], whole_steps=whole_steps, reason="" if whole_steps else "Cut."
        )


@pytest.mark.parametrize(
    ("ends", "state", "files", "whole_steps", "reason"),
    [
        ([(CaptureState.DONE, 16), (CaptureState.DONE, 9)], CaptureState.DONE, 2, 9, ""),
        ([(CaptureState.DONE, 16), (CaptureState.EMPTY,)], CaptureState.DONE, 1, 16, ""),
        ([(CaptureState.DONE, 16), (CaptureState.FAILED,)], CaptureState.FAILED, 2, 16, "Cut."),
        ([(CaptureState.EMPTY,), (CaptureState.EMPTY,)], CaptureState.EMPTY, 0, None, "Nothing ran."),
    ],
)
def test_processes_without_a_rank_have_one_outcome(node, ends, state, files, whole_steps, reason):
    node.executor(tools=[UnnamedProcesses(*ends)]).handle(request())
    final = node.until_state(state)
    assert (len(final.files), final.whole_steps, final.ranks) == (files, whole_steps, ())
    assert final.reason == reason


@pytest.mark.parametrize("error", [CaptureError("It hangs."), OSError(28, "It hangs.")])
def test_a_tool_that_cannot_stop_is_aborted_and_its_files_are_deleted(node, error):
    tool = ScriptedTool(error=error)
    node.executor(tools=[tool]).handle(request())
    assert "It hangs." in node.until_state(CaptureState.FAILED).reason
    assert not tool.collecting
    assert [file.name for file in (node.captures / "c1").iterdir()] == ["capture.json"]


def test_an_error_that_nobody_foresaw_costs_one_capture_and_no_more(node):
    tool = ScriptedTool(error=ZeroDivisionError("by nobody"))
    executor = node.executor(tools=[tool])
    executor.handle(request())
    assert "ZeroDivisionError('by nobody')" in node.until_state(CaptureState.FAILED).reason
    assert not tool.collecting
    assert [file.name for file in (node.captures / "c1").iterdir()] == ["capture.json"]
    executor.handle(request("c2"))
    assert node.until_state(CaptureState.RUNNING).capture_id == "c2"


def test_without_an_export_the_report_alone_is_the_result(node):
    node.launch()
    node.executor(options=NsysOptions(export_sqlite=False)).handle(request())
    assert len(node.until_state(CaptureState.DONE).files) == 1


def test_a_run_beside_another_of_the_same_job_is_captured_alone(node, monkeypatch):
    for number, run in enumerate(["mine", "other"]):
        monkeypatch.setenv(RUN_VARIABLE, run)
        node.launch(unique=str(number))
    node.executor(options=NsysOptions(settle_s=0, run="mine")).handle(request())
    assert len(node.until_state(CaptureState.DONE).files) == 2
    (report,) = node.captures.rglob("*.nsys-rep")
    assert session_name("llama", "0") in report.name.replace("-", ".")


@pytest.mark.parametrize("spelling", ["--gpu-metrics-devices", "--gpu-metrics-device"])
def test_gpu_metrics_are_asked_for_in_the_spelling_of_the_version(make_node, spelling):
    node = make_node(gpu_metrics_option=spelling)
    node.launch()
    node.executor(options=NsysOptions(gpu_metrics=True)).handle(request())
    node.until_state(CaptureState.DONE)


def test_a_job_that_dies_in_mid_capture_leaves_what_was_collected(node):
    job = node.launch()
    node.executor().handle(request(max_duration_s=HOUR_S))
    node.until_state(CaptureState.RUNNING)
    job.send_signal(signal.SIGTERM)
    for child in _ranks(node):
        os.kill(child, signal.SIGTERM)
    failed = node.until_state(CaptureState.FAILED)
    assert "The job ended during the capture. What was collected until then is kept." in failed.reason
    assert [Path(file.path).suffix for file in failed.files] == [".nsys-rep", ".sqlite"]
    assert node.session_state() is None


def _ranks(node):
    return [
        int(entry.name)
        for entry in Path("/proc").iterdir()
        if entry.name.isdecimal() and _environ(entry).find(str(node.directory).encode()) >= 0
    ]


def _environ(entry):
    try:
        content = (entry / "environ").read_bytes()
    except OSError:
        return b""
    return content if b"RANK=" in content else b""


def test_an_agent_stopped_in_mid_capture_leaves_nothing_running_and_no_files(node):
    node.launch()
    executor = node.executor()
    executor.handle(request(max_duration_s=HOUR_S))
    node.until_state(CaptureState.RUNNING)
    executor.stop()
    assert "agent was stopped" in node.until_state(CaptureState.FAILED).reason
    assert node.session_state() == "Launched"
    assert [file.name for file in (node.captures / "c1").iterdir()] == ["capture.json"]


_AGENT = """
import sys
from pathlib import Path
from perfd.capture.node.capture_executor import CaptureExecutor
from perfd.capture.node.job_guards import JobProgress
from perfd.capture.nsys.nsys_installation import inspect
from perfd.capture.nsys.nsys_tool import NsysTool
from perfd.capture.node.capture_storage import CaptureStore
from perfd.capture.node.capture_tool import CaptureTarget, Readiness
from perfd.clock import SystemClock
from perfd.errors import CaptureError
from perfd.model import CaptureRequest, CaptureTool

clock = SystemClock()
executor = CaptureExecutor(
    tools=[NsysTool(inspect(Path(sys.argv[1])), placements=lambda job: (), clock=clock)],
    store=CaptureStore(Path(sys.argv[2]), max_bytes=10**9, min_free_bytes=0),
    clock=clock,
    send_status=lambda status: print(status.state.value, flush=True),
    progress=lambda job: JobProgress(),
)
executor.start()
executor.handle(CaptureRequest(capture_id="c1", job="llama", tool=CaptureTool.NSYS, max_duration_s=300))
sys.stdin.read()
"""


def test_an_agent_killed_in_mid_capture_is_cleaned_up_after_by_the_next_one(node):
    node.launch()
    command = [sys.executable, "-c", _AGENT, node.nsys, node.captures]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as agent:
        assert [agent.stdout.readline().strip() for _ in range(2)] == ["armed", "running"]
        agent.kill()
    assert node.session_state() == "Collection"
    executor = node.executor()
    lost = node.next_status()
    assert (lost.state, lost.capture_id) == (CaptureState.LOST, "c1")
    assert node.session_state() == "Launched"
    assert [file.name for file in (node.captures / "c1").iterdir()] == ["capture.json"]
    executor.handle(request())
    assert node.next_status() is lost, "a request that is asked again is not carried out again"


def test_a_cancelled_capture_ends_at_once_and_its_files_are_deleted(node):
    node.launch()
    executor = node.executor()
    executor.handle(request(max_duration_s=HOUR_S))
    node.until_state(CaptureState.RUNNING)
    executor.handle(CaptureCancel(capture_id="somebody-elses", reason="no"))
    executor.handle(CaptureCancel(capture_id="c1", reason="enough"))
    assert node.until_state(CaptureState.FAILED).reason == "Canceled: enough"
    assert node.session_state() == "Launched"
    assert [file.name for file in (node.captures / "c1").iterdir()] == ["capture.json"]


def test_a_second_request_is_busy_while_the_first_one_runs(node):
    node.launch()
    executor = node.executor()
    executor.handle(request(max_duration_s=HOUR_S))
    node.until_state(CaptureState.RUNNING)
    executor.handle(request("c2"))
    busy = node.next_status()
    assert (busy.capture_id, busy.state, busy.reason) == (
        "c2",
        CaptureState.REFUSED,
        "Busy: capture c1 is running on this node.",
    )


def test_a_repeated_request_is_answered_again_and_captures_nothing_twice(node):
    node.launch()
    executor = node.executor()
    executor.handle(request())
    done = node.until_state(CaptureState.DONE)
    executor.handle(request())
    assert node.next_status() == done
    executor.stop()
    node.executor().handle(request())
    again = node.next_status()
    assert msgspec.json.encode(again) == msgspec.json.encode(done), "the next agent remembers too"


@pytest.mark.parametrize("bad", ["../escape", "a/b", "..", "", "-o", "a\0b"])
def test_an_id_that_could_leave_the_directory_is_refused(node, bad):
    node.launch()
    node.executor().handle(request(bad))
    assert "is not a capture id" in node.until_state(CaptureState.REFUSED).reason
    assert not node.captures.exists()


def test_a_disk_below_the_floor_is_refused_before_the_start(node):
    node.launch()
    node.free = lambda path: 10
    node.executor().handle(request())
    assert "must stay free" in node.until_state(CaptureState.REFUSED).reason


def test_a_disk_that_fills_up_stops_the_capture(node):
    node.launch()
    node.executor().handle(request(max_duration_s=HOUR_S))
    node.until_state(CaptureState.RUNNING)
    node.free = lambda path: 10
    assert "Free space fell" in node.until_state(CaptureState.FAILED).reason
    assert node.session_state() == "Launched"


def test_a_full_quota_is_refused_and_says_what_to_do(node):
    node.launch()
    node.captures.mkdir()
    (node.captures / "old").write_bytes(b"x" * 2000)
    node.max_bytes = 1000
    node.executor().handle(request())
    assert "delete old ones" in node.until_state(CaptureState.REFUSED).reason


def test_a_report_beyond_the_size_cap_is_deleted(make_node):
    node = make_node(report_bytes=300_000)
    node.launch()
    node.executor().handle(request(max_bytes=200_000))
    assert "was deleted" in node.until_state(CaptureState.FAILED).reason
    assert [file.name for file in (node.captures / "c1").iterdir()] == ["capture.json"]


def test_a_start_that_was_missed_is_late(node):
    node.launch()
    node.executor().handle(request(start_unix_ns=SystemClock().unix_ns() - 5 * 10**9))
    assert "after the agreed start" in node.until_state(CaptureState.LATE).reason
    assert node.session_state() == "Launched"


def test_an_agreed_start_is_waited_for(node):
    node.launch()
    start_unix_ns = SystemClock().unix_ns() + 3 * 10**8
    node.executor().handle(request(start_unix_ns=start_unix_ns))
    assert node.until_state(CaptureState.DONE).started_unix_ns >= start_unix_ns


def test_a_start_far_ahead_means_that_clocks_differ(node):
    node.launch()
    node.executor().handle(request(start_unix_ns=SystemClock().unix_ns() + 10**12))
    node.next_status()
    assert "clocks" in node.until_state(CaptureState.REFUSED).reason


def test_a_tool_that_the_node_does_not_have_is_refused(node):
    node.executor().handle(request(tool=CaptureTool.KINETO))
    assert "no capture tool kineto" in node.until_state(CaptureState.REFUSED).reason


def progress(last_step, *times_s, **changes):
    first = last_step - len(times_s) + 1
    return JobProgress(step=last_step, step_times_s=list(enumerate(times_s, first)), **changes)


def test_a_capture_that_slows_its_job_is_stopped_and_keeps_what_it_has(node):
    node.launch()
    node.progress = progress(10, 1.0, 1.0, 1.0)
    node.executor().handle(request(max_duration_s=HOUR_S))
    node.until_state(CaptureState.RUNNING)
    node.progress = progress(12, 1.0, 1.0, 1.0, 2.5, 3.0)
    status = node.until_state(CaptureState.FAILED)
    assert "steps took 2.5 s, and 1 s before it" in status.reason
    assert status.files
    assert node.session_state() == "Launched"


def test_one_slow_step_is_what_a_profiler_costs(node):
    node.launch()
    node.progress = progress(10, 1.0, 1.0, 1.0)
    node.executor().handle(request(steps=2, max_duration_s=HOUR_S))
    node.until_state(CaptureState.RUNNING)
    node.progress = progress(13, 1.0, 1.0, 1.0, 5.0, 1.0, 1.0)
    assert node.until_state(CaptureState.DONE).reason == ""


def test_a_capture_started_by_longer_steps_is_compared_with_these(node):
    node.launch()
    node.progress = progress(10, 1.0, 1.0, 1.0, 2.5, 2.5)
    node.executor().handle(request(steps=2, max_duration_s=HOUR_S))
    node.until_state(CaptureState.RUNNING)
    node.progress = progress(13, 1.0, 1.0, 1.0, 2.5, 2.5, 2.6, 2.5, 2.6)
    assert node.until_state(CaptureState.DONE).reason == ""


@pytest.mark.parametrize(
    ("kernels", "remark"), [(3, ""), (2, "The trace contains only 2 of the 3 requested steps")]
)
def test_the_trace_shows_how_many_whole_steps_are_in_it(make_node, kernels, remark):
    node = make_node(kernels_per_process=kernels)
    node.launch()
    node.progress = progress(10, 1.0, 1.0, 1.0)
    node.executor().handle(request(steps=3, max_duration_s=HOUR_S))
    node.until_state(CaptureState.RUNNING)
    node.progress = progress(14, 1.0, 1.0, 1.0)
    status = node.until_state(CaptureState.DONE)
    assert status.whole_steps == kernels, "the stand-in's steps have one kernel"
    assert status.reason.startswith(remark)
    assert bool(status.reason) == bool(remark)


def test_what_a_trace_does_not_show_is_not_known(node):
    node.launch()
    node.executor().handle(request(steps=3))
    assert node.until_state(CaptureState.DONE).whole_steps is None, "nobody said how long a step takes"


def test_after_a_report_that_began_late_the_next_capture_settles_longer(make_node):
    node = make_node(first_kernel_s=4.0)
    node.launch()
    tool = NsysTool(inspect(node.nsys), placements=lambda job: (), clock=SystemClock())
    settled_s = []
    for name in ("first", "second"):
        plan = CapturePlan(
            capture_id=name, directory=node.directory / name, max_duration_s=9, max_bytes=10**9, steps=1
        )
        plan.directory.mkdir()
        targets = tool.ready("llama", ()).targets
        settled_s.append(tool.start(targets, plan).settle_s)
        tool.stop(targets, plan)
    assert settled_s == [2.0, 6.0]


def test_a_job_that_saves_a_checkpoint_is_left_alone(node):
    node.launch()
    node.progress = progress(100, 1.0, checkpoint_interval_steps=50, last_checkpoint_step=50)
    executor = node.executor()
    executor.handle(request())
    assert "saves a checkpoint after step 100" in node.until_state(CaptureState.REFUSED).reason
    node.progress = progress(100, 1.0, checkpoint_interval_steps=50, last_checkpoint_step=100)
    executor.handle(request("c2"))
    node.until_state(CaptureState.DONE)


def test_a_job_whose_log_says_that_it_saves_is_left_alone_until_a_step_ends_after_it(node):
    node.launch()
    node.progress = progress(100, 1.0, begun_checkpoint_step=100, last_checkpoint_step=50)
    executor = node.executor()
    executor.handle(request())
    assert "saves a checkpoint after step 100" in node.until_state(CaptureState.REFUSED).reason
    node.progress = progress(101, 1.0, begun_checkpoint_step=100, last_checkpoint_step=50)
    executor.handle(request("c2"))
    node.until_state(CaptureState.DONE)


def test_a_job_near_the_timeout_of_nccl_is_left_alone(node):
    node.launch()
    now_unix_ns = SystemClock().unix_ns()
    node.progress = progress(100, 1.0, last_line_unix_ns=now_unix_ns - 310 * 10**9)
    node.executor().handle(request())
    assert "silent for 310 s and NCCL gives up after 600 s" in node.until_state(CaptureState.REFUSED).reason


@pytest.mark.slow
@pytest.mark.parametrize(("steps_left", "state"), [(21, CaptureState.DONE), (20, CaptureState.REFUSED)])
def test_a_job_that_ends_before_the_report_is_written_is_left_alone(node, steps_left, state):
    """No lead, 8 s, 10 s for writing and 3 s of margin."""
    node.launch()
    clock = VirtualClock()
    node.progress = progress(100, 1.0, train_steps=100 + steps_left)
    node.executor(clock=clock, progress=advancing(node, clock)).handle(request(max_duration_s=8.0))
    status = node.until_state(state)
    if state is CaptureState.REFUSED:
        assert status.reason == (
            "The job ends in about 20 s (20 of 120 steps left at 1 s); a nsys capture needs 21 s."
        )


def advancing(node, clock):
    """A job's progress by which 0.1 s pass with each look during a capture."""

    def look(job):
        if node.session_state() == "Collection":
            clock.advance(0.1)
        return node.progress

    return look


def test_a_time_limit_of_the_scheduler_is_an_end_too(node):
    node.launch()
    limit_unix_s = SystemClock().unix_ns() / 1e9 + 5
    node.progress = progress(100, 1.0, limit_unix_s=limit_unix_s)
    node.executor().handle(request())
    reason = node.until_state(CaptureState.REFUSED).reason
    assert "(SLURM's time limit); a nsys capture needs" in reason


def test_a_capture_that_runs_is_stopped_before_the_job_ends_and_keeps_its_report(node):
    node.launch()
    node.progress = progress(100, 1.0, train_steps=10**6)
    node.executor().handle(request(max_duration_s=HOUR_S))
    node.until_state(CaptureState.RUNNING)
    node.progress = progress(10**6 - 12, 1.0, train_steps=10**6)
    status = node.until_state(CaptureState.DONE)
    assert status.reason == (
        "The capture was stopped: the job ends in about 12 s (12 of 1000000 steps left at 1 s), "
        "and writing needs 13 s."
    )
    assert status.files
    assert node.session_state() == "Launched"


class Stacks(Tool):
    """Takes stacks of a job at once."""

    for_hangs = True

    def __init__(self, kind=CaptureTool.PY_SPY, wait=lambda: None):
        self._kind = kind
        self._wait = wait

    @property
    def kind(self):
        return self._kind

    def available(self):
        return True

    def ready(self, job, ranks):
        return Readiness(targets=[CaptureTarget(handle="pid:1", processes={1: 0})])

    def start(self, targets, plan):
        return Begun(length_s=0.0)

    def alive(self, targets):
        return True

    def stop(self, targets, plan):
        self._wait()
        return [CaptureOutcome(state=CaptureState.DONE, ranks=(0,))]

    def abort(self, handles):
        return


def test_stacks_are_taken_while_another_capture_is_stuck(node):
    node.launch()
    nsys = NsysTool(inspect(node.nsys), placements=lambda job: (), clock=SystemClock())
    executor = node.executor(tools=[nsys, Stacks()])
    executor.handle(request("stuck", max_duration_s=HOUR_S))
    node.until_state(CaptureState.RUNNING)
    executor.handle(request("stacks", tool=CaptureTool.PY_SPY))
    done = node.until_state(CaptureState.DONE)
    assert done.capture_id == "stacks"
    executor.handle(request("another", max_duration_s=HOUR_S))
    assert "Busy: capture stuck" in node.until_state(CaptureState.REFUSED).reason
    executor.handle(CaptureCancel(capture_id="stuck", reason="enough"))
    assert node.until_state(CaptureState.FAILED).capture_id == "stuck"


def test_stacks_and_the_flight_recorder_do_not_wait_for_each_other(node):
    together = threading.Barrier(2, timeout=30)
    kinds = (CaptureTool.FLIGHT_RECORDER, CaptureTool.PY_SPY)
    executor = node.executor(tools=[Stacks(kind, together.wait) for kind in kinds])
    for kind in kinds:
        executor.handle(request(kind.value, tool=kind))
    done = {node.until_state(CaptureState.DONE).capture_id for _ in kinds}
    assert done == {"flight_recorder", "py_spy"}


def test_a_job_that_logs_rarely_is_not_silent(node):
    node.launch()
    now_unix_ns = SystemClock().unix_ns()
    node.progress = progress(100, 5.0, steps_per_line=100, last_line_unix_ns=now_unix_ns - 310 * 10**9)
    node.executor().handle(request())
    node.until_state(CaptureState.DONE)

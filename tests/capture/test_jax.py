"""Captures through JAX's profiler server, with processes that answer as XLA's does."""

import gzip
import os
import stat
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from capture.conftest import Node, request

from perfd.capture.jax import JaxOptions, JaxTool
from perfd.capture.jax.xplane_contents import contents_of
from perfd.capture.node.job_guards import JobProgress
from perfd.clock import SystemClock
from perfd.errors import CaptureError
from perfd.model import CaptureCancel, CaptureState, CaptureTool, RankPlacement
from perfd.trace.model.step_coverage import whole_steps
from perfd.trace.readers.trace_files import read_traces
from tests.support.xplane import plane, xplane_space

ROOT = Path(__file__).parents[2]


@dataclass
class Job:
    """Processes of a job, and the tool that captures them."""

    node: Node
    scratch: Path
    placements: list = field(default_factory=list)
    ports: list = field(default_factory=list)

    def rank(self, behavior="serves", *, placed=True, **environment):
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.jax_process", str(self.scratch), behavior],
            env={**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(self.scratch), **environment},
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.node.jobs.append(process)
        self.ports.append(int(process.stdout.readline()))
        if placed:
            rank = len(self.placements)
            self.placements.append(RankPlacement(job="llama", rank=rank, pid=process.pid))
        return process

    def tool(self, run=None, **options):
        return JaxTool(
            placements=lambda job: self.placements if job == "llama" else (),
            clock=SystemClock(),
            options=JaxOptions(**options),
            run=run,
        )

    def capture(self, *, run=None, options=None, **changes):
        executor = self.node.executor(tools=[self.tool(run, **(options or {}))])
        executor.handle(request(tool=CaptureTool.JAX, **changes))
        return executor

    def final(self):
        return self.node.until_final()

    @property
    def leftovers(self):
        return sorted(path.name for path in self.scratch.glob("perfd-*"))


@pytest.fixture
def node(tmp_path):
    node = Node(directory=tmp_path, nsys=Path("/nowhere"))
    yield node
    node.end()


@pytest.fixture
def job(node, tmp_path):
    (tmp_path / "scratch").mkdir()
    return Job(node=node, scratch=tmp_path / "scratch")


def test_every_rank_leaves_a_private_profile_that_perfd_reads(job):
    for _ in range(2):
        job.rank()
    job.capture()
    finals = [job.final(), job.final()]
    assert {end.state for end in finals} == {CaptureState.DONE}, finals
    for end in finals:
        ((file,), (rank,)) = end.files, end.ranks
        path = Path(file.path)
        assert path == job.node.captures / "c1" / f"rank{rank}_{job.placements[rank].pid}.xplane.pb"
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert [trace.device for trace in read_traces([path])] == [0, 1]
    assert job.leftovers == []


def test_only_the_requested_rank_is_profiled(job):
    job.rank()
    job.rank()
    job.capture(ranks=(1,))
    assert job.final().ranks == (1,)
    files = [path.name for path in (job.node.captures / "c1").iterdir()]
    assert sorted(name.partition("_")[0] for name in files) == ["capture.json", "rank1"]


def test_a_profile_ends_when_the_job_has_made_the_requested_steps(job):
    job.rank()
    job.node.progress = JobProgress(step=10)
    job.capture(steps=2, max_duration_s=300.0)
    job.node.until_state(CaptureState.RUNNING)
    job.node.progress = JobProgress(step=13)
    done = job.final()
    # The two steps of the stand-in's file are annotated.
    assert (done.state, done.whole_steps) == (CaptureState.DONE, 2)


def test_a_canceled_profile_leaves_no_file_anywhere(job):
    job.rank()
    executor = job.capture(max_duration_s=300.0)
    job.node.until_state(CaptureState.RUNNING)
    executor.handle(CaptureCancel(capture_id="c1", reason="changed my mind"))
    assert job.final().state is CaptureState.FAILED
    assert job.leftovers == []
    assert [path.name for path in (job.node.captures / "c1").iterdir()] == ["capture.json"]


@pytest.mark.parametrize(
    ("behavior", "words"),
    [
        ("none", "has no profiler server: the job must call jax.profiler.start_server(PORT)."),
        ("other", "has no profiler server: the job must call jax.profiler.start_server(PORT)."),
    ],
)
def test_a_process_without_a_profiler_server_is_refused_with_what_to_do(job, behavior, words):
    process = job.rank(behavior)
    job.capture()
    end = job.final()
    assert (end.state, end.ranks) == (CaptureState.REFUSED, (0,))
    assert end.reason == f"Process {process.pid} {words}"


def test_a_process_without_jax_is_never_asked(job):
    process = subprocess.Popen(["sleep", "600"], stdout=subprocess.PIPE, start_new_session=True)
    job.node.jobs.append(process)
    job.placements.append(RankPlacement(job="llama", rank=0, pid=process.pid))
    job.capture()
    assert job.final().reason == f"Process {process.pid} has not loaded JAX."


def test_only_configured_ports_are_tried(job):
    job.rank()
    (port,) = job.ports
    (target,) = job.tool(ports=[port]).ready("llama", ()).targets
    assert target.ranks == (0,)
    refused = job.tool(ports=[port + 1]).ready("llama", ()).refused
    assert "no profiler server on a port of capture.jax.ports" in refused[0]


def test_a_process_under_nsys_is_refused(job):
    job.rank(NSYS_PROFILING_SESSION_ID="7")
    assert "runs under `nsys launch`" in job.tool().ready("llama", ()).refused[0]


@pytest.mark.parametrize(
    ("behavior", "state", "words"),
    [
        ("busy", CaptureState.FAILED, "JAX's profiler server answers: Another profiling session active."),
        ("cut", CaptureState.FAILED, "The profile is not an XLA profile, or it is truncated"),
        ("dies", CaptureState.FAILED, "The process ended before it wrote its trace."),
        ("host-only", CaptureState.EMPTY, "no GPU or TPU work"),
    ],
)
def test_what_went_wrong_is_the_outcome_of_the_rank(job, behavior, state, words):
    job.rank(behavior)
    job.capture()
    end = job.final()
    assert (end.state, end.ranks) == (state, (0,)), end
    assert words in end.reason
    assert job.leftovers == []


def test_host_activity_alone_counts_where_the_operator_wants_it(job):
    job.rank("host-only")
    job.capture(options={"cpu_only": True})
    end = job.final()
    assert (end.state, end.reason.split(".")[0]) == (
        CaptureState.DONE,
        "The profile has host activity only",
    )


def test_processes_of_a_run_are_profiled_though_none_is_a_known_rank(job, tmp_path):
    ours = str(tmp_path)
    process = job.rank(placed=False, PERFD_RUN=ours)
    job.rank(placed=False, PERFD_RUN="theirs")
    job.capture(run=ours)
    end = job.final()
    assert end.state is CaptureState.DONE, end
    (file,) = end.files
    assert Path(file.path).name == f"process_{process.pid}.xplane.pb"


def test_a_profile_of_an_agent_that_is_gone_leaves_no_folder(job):
    job.rank()
    tool = job.tool()
    (target,) = tool.ready("llama", ()).targets
    folder = job.scratch / target.handle.split("!")[2]
    folder.mkdir()
    (folder / "rank0.xplane.pb").write_bytes(b"")
    job.tool().abort([target.handle])
    assert job.leftovers == []


def test_a_large_profile_is_judged_by_the_names_in_it(tmp_path, monkeypatch):
    monkeypatch.setattr("perfd.capture.jax.xplane_contents._DECODED_BYTES", 10)
    path = tmp_path / "a.xplane.pb"
    for content, work in ((xplane_space(), True), (plane("/host:CPU", [], {}), False)):
        path.write_bytes(content)
        found = contents_of(path)
        assert (found.device_work, found.recorded) == (work, None)


@pytest.mark.parametrize("kept", [0, 1, 100, -1])
def test_a_profile_that_is_cut_is_an_error(tmp_path, kept):
    path = tmp_path / "a.xplane.pb"
    path.write_bytes(xplane_space()[:kept])
    with pytest.raises(CaptureError):
        contents_of(path)


SHARED = Path(os.environ.get("PERFD_SHARED", "/nowhere"), "traces", "jax-fsdp4")


@pytest.mark.skipif(not SHARED.is_dir(), reason="PERFD_SHARED has no trace of a real job")
def test_whole_steps_of_a_real_job_are_found_by_its_kernels(tmp_path):
    path = tmp_path / "a.xplane.pb"
    path.write_bytes(gzip.decompress((SHARED / "jax.xplane.pb.gz").read_bytes()))
    contents = contents_of(path)
    assert contents.device_work
    # The job without marks of steps, traced for 0.64 s: its own log says 0.16 s a step.
    assert whole_steps(contents.recorded, 0.16) == 4
    assert whole_steps(contents.recorded) is None

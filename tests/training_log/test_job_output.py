"""The files that a job's processes write to are found, and nobody else's."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from perfd_collectors.training_log.collector import TrainingLogOptions, create
from perfd_collectors.training_log.job_output import LOOK_EVERY_S, JobOutput, JobProcesses

from perfd.clock import VirtualClock
from perfd.collector import Settings

WRITE = """
import sys
print(sys.argv[1], end="", flush=True)
print("ready", file=sys.stderr, flush=True)
sys.stdin.read()
"""
STEP = (
    " iteration        1/     500 | consumed samples:            8 | elapsed time per iteration (ms): 100.0 |"
    " throughput per GPU (TFLOP/s/GPU): 300.0 | learning rate: 1.0E-04 | global batch size:     8 |"
    " lm loss: 1.0E+01 |\n"
)


class Job:
    """Processes of a SLURM job on this machine, which end with the test."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.clock = VirtualClock()
        self.find = JobOutput(Path("/proc"), JobProcesses(job="4711", uid=os.geteuid()), self.clock)
        self._processes: list[subprocess.Popen[bytes]] = []

    def run(
        self, name: str, text: str, *, mode: str = "wb", program: str = sys.executable, **environ: str
    ) -> Path:
        """A process whose standard output is a file, which has the text by now."""
        path = self.folder / name
        with path.open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, "-c", WRITE, text],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.PIPE,
                env={"SLURM_JOB_ID": "4711", **environ},
            )
        self._processes.append(process)
        assert process.stderr is not None
        assert process.stderr.readline() == b"ready\n"
        return path

    def found(self) -> dict[str, Path]:
        """The files at the next look."""
        self.clock.advance(LOOK_EVERY_S)
        return dict(self.find())

    def end(self) -> None:
        for process in self._processes:
            process.kill()
            process.communicate()
        self._processes.clear()


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    job = Job(tmp_path)
    yield job
    job.end()


def test_a_file_that_a_process_of_the_job_prints_to_is_found_and_stays(job: Job) -> None:
    path = job.run("any name.txt", "one line\n")
    assert job.found() == {str(path): path}
    job.end()
    assert job.found() == {str(path): path}
    path.unlink()
    assert job.found() == {}


def test_other_jobs_and_perfd_itself_are_not_read(job: Job) -> None:
    job.run("other", "a line\n", SLURM_JOB_ID="47110")
    job.run("none", "a line\n", SLURM_JOB_ID="")
    job.run("agent.log", "a line\n", PERFD_OWN_PROCESS="1")
    assert job.found() == {}
    # The same processes, for another user of the same job's number.
    job.run("mine", "a line\n")
    stranger = JobOutput(Path("/proc"), JobProcesses(job="4711", uid=os.geteuid() + 4711), job.clock)
    assert stranger() == {}
    assert len(job.found()) == 1


def test_what_is_no_text_is_not_read_and_an_empty_file_when_it_has_some(job: Job) -> None:
    job.run("archive.tar", "").write_bytes(b"name\0\0\0data")
    path = job.run("later", "")
    assert job.found() == {}
    path.write_text("a line\n")
    assert job.found() == {str(path): path}


@pytest.mark.parametrize(("program", "found"), [("srun", True), ("tee", True), ("python3", False)])
def test_of_what_writes_for_others_every_file_is_found(
    job: Job, tmp_path: Path, program: str, found: bool
) -> None:
    srun = tmp_path / program
    srun.symlink_to("/bin/bash")
    reads, writes = tmp_path / "input", tmp_path / "own.txt"
    reads.write_text("input\n")
    script = f"exec 4>{writes} 5<{reads}; echo a line >&4; echo ready >&2; read"
    process = subprocess.Popen(
        [srun, "-c", script], stdin=subprocess.PIPE, stderr=subprocess.PIPE, env={"SLURM_JOB_ID": "4711"}
    )
    job._processes.append(process)
    assert process.stderr is not None
    assert process.stderr.readline() == b"ready\n"
    assert job.found() == ({str(writes): writes} if found else {})


def test_a_name_that_leads_elsewhere_is_read_through_the_process(job: Job, tmp_path: Path) -> None:
    """As in a container, or where the job's own /tmp is not the node's."""
    path = job.run("log", "the job's\n")
    path.unlink()
    # As /proc calls the file from then on.
    (tmp_path / "log (deleted)").write_text("somebody else's\n")
    hidden = JobOutput(Path("/proc"), JobProcesses(job="4711", uid=os.geteuid()), job.clock)
    (link,) = hidden().values()
    assert link.parts[1] == "proc"
    assert link.read_text() == "the job's\n"


def test_the_collector_reads_a_file_once_however_it_is_found(job: Job) -> None:
    path = job.run("train.log", STEP)
    options = TrainingLogOptions(paths=(str(path),), job_output="4711")
    collector = create(options, Settings(node="n1", job="mine", clock=job.clock))
    records = [record for _ in range(2) for record in collector.collect()]
    steps = [record for record in records if type(record).__name__ == "TrainingStep"]
    assert [step.step for step in steps] == [1]
    assert {step.job for step in steps} == {"mine"}
    collector.close()

"""The collector: what Prolog and Epilog write in, records of all jobs of the node out."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from perfd_collectors.slurm_jobs import SlurmJobsCollector, SlurmJobsOptions
from training_log.logs import iteration

from perfd.clock import VirtualClock
from perfd.collector import Settings
from perfd.model import Event, EventKind, JobOrigin, JobOutcome, Record, TrainingStep

WRITE = """
import sys
print(sys.argv[1], flush=True)
print("ready", file=sys.stderr, flush=True)
sys.stdin.read()
"""
UID = os.geteuid()
JOB, OTHER = (str(1_000_000_000 + 2 * os.getpid() + n) for n in range(2))
"""Numbers that no SLURM on this machine has given."""


class Node:
    """A node whose Prolog and Epilog are the test."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.jobs = folder / "n1" / "jobs"
        self.clock = VirtualClock()
        self.settings = Settings(node="n1", job="default", clock=self.clock)
        self.collector = self.started()
        self._processes: list[subprocess.Popen[bytes]] = []

    def started(self) -> SlurmJobsCollector:
        """The collector of an agent that starts now."""
        return SlurmJobsCollector(SlurmJobsOptions(directory=str(self.folder)), self.settings)

    def prolog(self, number: str, restarts: int = 0, **variables: str) -> Path:
        self.jobs.mkdir(parents=True, exist_ok=True)
        known = {
            "SLURM_JOB_ID": number,
            "SLURM_JOB_UID": str(UID),
            "SLURM_JOB_USER": "ada",
            "SLURM_RESTART_COUNT": str(restarts),
            "PERFD_LOG": "stdout",
            **variables,
        }
        path = self.jobs / f"{number}-{restarts}"
        path.write_text("".join(f"{name}={value}\n" for name, value in known.items()))
        return path

    def epilog(self, number: str, text: str, restarts: int = 0) -> None:
        (self.jobs / f"{number}-{restarts}.end").write_text(text + "\n")

    def run(self, number: str, *steps: int, **environ: str) -> None:
        """A process of the job that has printed these steps."""
        output = (self.folder / f"output-{number}-{len(self._processes)}").open("wb")
        with output:
            process = subprocess.Popen(
                [sys.executable, "-c", WRITE, "\n".join(iteration(step) for step in steps)],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.PIPE,
                env={"SLURM_JOB_ID": number, **environ},
            )
        self._processes.append(process)
        assert process.stderr is not None
        assert process.stderr.readline() == b"ready\n"

    def collect(self) -> list[Record]:
        self.clock.advance(3.0)
        return list(self.collector.collect())

    def end(self) -> None:
        self.collector.close()
        for process in self._processes:
            process.kill()
            process.communicate()


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    node = Node(tmp_path)
    yield node
    node.end()


def steps(records: list[Record]) -> dict[str | None, list[int]]:
    found: dict[str | None, list[int]] = {}
    for record in records:
        if isinstance(record, TrainingStep):
            found.setdefault(record.job, []).append(record.step)
    return found


def ends(records: list[Record]) -> list[tuple[str | None, JobOutcome | None]]:
    return [
        (record.job, record.outcome)
        for record in records
        if isinstance(record, Event) and record.kind is EventKind.JOB_ENDED
    ]


def origins(records: list[Record]) -> dict[str, JobOrigin]:
    return {record.job: record for record in records if isinstance(record, JobOrigin)}


def test_one_agent_reads_all_jobs_of_a_node_and_says_how_each_ended(node: Node) -> None:
    assert node.collect() == []
    node.prolog(JOB, SLURM_JOB_PARTITION="gpu")
    node.prolog(OTHER)
    node.run(JOB, 1, 2, SLURM_JOB_NAME="pretrain", SLURM_JOB_ACCOUNT="physics")
    node.run(OTHER, 1)
    records = node.collect()
    assert steps(records) == {JOB: [1, 2], OTHER: [1]}
    origin = origins(records)[JOB]
    assert (origin.title, origin.user, origin.account, origin.partition, origin.owner) == (
        "pretrain",
        "ada",
        "physics",
        "gpu",
        f"uid:{UID}",
    )
    assert node.settings.local_jobs.scheduled == {JOB: UID, OTHER: UID}
    node.epilog(JOB, "exit_code=3")
    assert ends(node.collect()) == [(JOB, JobOutcome.FAILED)]
    assert {path.name for path in node.jobs.iterdir()} == {f"{JOB}-0", f"{JOB}-0.end", f"{OTHER}-0"}
    # By now the agent has taken the end.
    assert ends(node.collect()) == []
    assert {path.name for path in node.jobs.iterdir()} == {f"{OTHER}-0"}


def test_a_requeued_job_is_read_again_while_its_first_end_is_still_there(node: Node) -> None:
    node.prolog(JOB)
    node.run(JOB, 1, 2)
    node.collect()
    node.epilog(JOB, "outcome=preempted")
    node.prolog(JOB, restarts=1)
    records = node.collect()
    assert ends(records) == [(JOB, JobOutcome.PREEMPTED)]
    assert origins(records)[JOB].scheduler_restarts == 1
    node.collect()
    assert {path.name for path in node.jobs.iterdir()} == {f"{JOB}-1"}


def test_a_task_of_an_array_is_called_by_array_and_index_whatever_the_user_sets(node: Node) -> None:
    node.prolog(JOB)
    node.prolog(OTHER)
    node.run(JOB, 1, SLURM_ARRAY_JOB_ID="19", SLURM_ARRAY_TASK_ID="4")
    node.run(OTHER, 1, SLURM_ARRAY_JOB_ID="19", SLURM_ARRAY_TASK_ID="4/../../x")
    assert set(steps(node.collect())) == {"19_4", OTHER}


def test_another_users_process_gives_a_job_no_steps_and_no_name(node: Node) -> None:
    node.prolog(JOB, SLURM_JOB_UID=str(UID + 1))
    node.run(JOB, 1, SLURM_ARRAY_JOB_ID="19", SLURM_ARRAY_TASK_ID="4")
    assert steps(node.collect()) == {}
    node.epilog(JOB, "exit_code=0")
    assert ends(node.collect()) == [(JOB, JobOutcome.COMPLETED)]


def test_a_log_that_the_site_names_is_read_instead_of_the_output(node: Node) -> None:
    log = node.folder / "train.log"
    log.write_text(iteration(5) + "\n")
    node.prolog(JOB, PERFD_LOG=str(log))
    node.prolog(OTHER, PERFD_LOG="none")
    node.run(JOB, 1)
    node.run(OTHER, 1)
    records = node.collect()
    assert steps(records) == {JOB: [5]}
    assert set(origins(records)) == {JOB, OTHER}


def test_a_job_from_before_the_machines_start_is_forgotten(node: Node) -> None:
    """Its Epilog never ran, and it may run elsewhere by now."""
    path = node.prolog(JOB)
    os.utime(path, (1.0, 1.0))
    assert node.collect() == []
    assert node.collect() == []
    assert list(node.jobs.iterdir()) == []


@pytest.mark.parametrize(
    "text", ["", "SLURM_JOB_ID=7", "SLURM_JOB_ID=../7\nSLURM_JOB_UID=0", "\0" * 100, "SLURM_JOB_UID=x"]
)
def test_a_file_that_is_no_job_is_passed_over(node: Node, text: str) -> None:
    node.prolog(OTHER)
    node.run(OTHER, 1)
    (node.jobs / f"{JOB}-0").write_text(text)
    (node.jobs / ".9-0").write_text("not complete")
    assert steps(node.collect()) == {OTHER: [1]}


def test_an_end_is_reported_after_the_agent_was_away(node: Node) -> None:
    node.prolog(JOB, SLURM_ARRAY_JOB_ID="6", SLURM_ARRAY_TASK_ID="1")
    node.epilog(JOB, "outcome=out_of_memory exit_code=137")
    assert ends(node.collect()) == [("6_1", JobOutcome.OUT_OF_MEMORY)]
    node.collector.close()
    assert list(node.jobs.iterdir()) == []

"""SLURM's data about a job and its steps, and how to add a step."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from perfd.errors import CaptureError

_FIELD = re.compile(r"(?:^| )([A-Z][A-Za-z:/]*)=")
_JOB = re.compile(r"\d{1,10}(_\d{1,10})?")
_TIMEOUT_S = 60.0
"""For one command: a controller that is busy answers late."""
_OURS = "perfd"
"""Prefix of the names of perfd's own steps: the sidecar's, and a capture's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmStep:
    """A numbered step of a job."""

    number: int
    name: str
    tasks: int
    node_list: str = ""
    """As SLURM writes it: `n[1-4]`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankScope:
    """Where to look for the ranks of a job."""

    step: int | None
    """None: in the batch script."""
    nodes: Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmJob:
    """A job that runs."""

    job_id: str
    """SLURM's own number, also for a task of an array."""
    name: str
    """Its name in perfd's agents: the number, or `ARRAY_TASK`."""
    batch_host: str
    steps: Sequence[SlurmStep]


class Slurm:
    """Queries SLURM through its commands; each method raises `CaptureError` with what to do."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        # Inside a job's shell its variables would become options of our step.
        self.environment = {
            name: value
            for name, value in environment.items()
            if not name.startswith(("SLURM_", "SRUN_", "SLURMD_")) or name == "SLURM_CONF"
        }

    def job(self, job: str) -> SlurmJob:
        """A running job, by its number or as `ARRAY_TASK`."""
        if not _JOB.fullmatch(job):
            raise CaptureError(f"{job!r} is not a job of SLURM: give its number, or ARRAY_TASK as in 17_3.")
        found = parse_records(self._ask("scontrol", "show", "job", "-o", job))
        fields = running(job, found)
        job_id = fields["JobId"]
        array, task = fields.get("ArrayJobId"), fields.get("ArrayTaskId")
        return SlurmJob(
            job_id=job_id,
            name=f"{array}_{task}" if array and task else job_id,
            batch_host=fields.get("BatchHost", ""),
            steps=parse_steps(self._ask("scontrol", "show", "step", "-o", job_id)),
        )

    def place(self, job: SlurmJob, step: int | None) -> RankScope:
        """Where the ranks of a job are: in step `wanted`, or in the one that looks like the training."""
        chosen = choose_step(job, step)
        if chosen is None:
            return RankScope(step=None, nodes=[job.batch_host])
        hosts = self._ask("scontrol", "show", "hostnames", chosen.node_list)
        return RankScope(step=chosen.number, nodes=hosts.split())

    def start(self, job: SlurmJob, place: RankScope, command: Sequence[str]) -> subprocess.Popen[str]:
        """Run a command once on each node of a place, with pipes to and from all of them."""
        try:
            return subprocess.Popen(
                [*srun_arguments(job, place), *command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                errors="replace",
                env=self.environment,
                # Ctrl-C is ours: srun would kill the step, and leave its profilers running.
                start_new_session=True,
            )
        except OSError as error:
            raise _no_command("srun", error) from error

    def _ask(self, *command: str) -> str:
        try:
            done = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=_TIMEOUT_S,
                check=False,
                env=self.environment,
            )
        except OSError as error:
            raise _no_command(command[0], error) from error
        except subprocess.TimeoutExpired as error:
            raise CaptureError(
                f"SLURM did not answer `{' '.join(command)}` within {_TIMEOUT_S:.0f} s."
            ) from error
        if done.returncode:
            complaint = [line for line in (done.stderr or done.stdout).splitlines() if line.strip()][-1:]
            raise CaptureError(
                f"`{' '.join(command)}` failed: {(complaint or ['no output'])[0].strip().rstrip('.')}."
            )
        return done.stdout


def srun_arguments(job: SlurmJob, place: RankScope) -> list[str]:
    """An srun that adds a step of one task per node, which takes no resources from the others."""
    nodes = str(len(place.nodes))
    return [
        "srun",
        f"--jobid={job.job_id}",
        "--overlap",
        f"--nodelist={','.join(place.nodes)}",
        f"--nodes={nodes}",
        f"--ntasks={nodes}",
        "--ntasks-per-node=1",
        "--cpus-per-task=1",
        "--cpu-bind=none",
        "--kill-on-bad-exit=0",
        "--job-name=perfd-capture",
        "--quiet",
    ]


def parse_records(text: str) -> list[dict[str, str]]:
    """The fields of each line of `scontrol show -o`; other words are dropped."""
    return [fields for line in text.splitlines() if (fields := _fields(line))]


def _fields(line: str) -> dict[str, str]:
    marks = list(_FIELD.finditer(line))
    ends = [*(mark.start() for mark in marks[1:]), len(line)]
    return {mark[1]: line[mark.end() : end].strip() for mark, end in zip(marks, ends, strict=False)}


def running(job: str, found: Sequence[Mapping[str, str]]) -> Mapping[str, str]:
    """The running one of these jobs; raises `CaptureError` if there is none, or several."""
    states = [fields for fields in found if fields.get("JobId", "").isdecimal()]
    if not states:
        raise CaptureError(f"SLURM has no job {job}.")
    alive = [fields for fields in states if fields.get("JobState") == "RUNNING"]
    if not alive:
        raise CaptureError(
            f"Job {job} is {states[0].get('JobState', 'unknown')}; only a running job can be captured."
        )
    if len(alive) > 1:
        tasks = ", ".join(f"{fields.get('ArrayJobId')}_{fields.get('ArrayTaskId')}" for fields in alive[:5])
        raise CaptureError(f"Job {job} is an array of which {len(alive)} tasks run; name one ({tasks}).")
    return alive[0]


def parse_steps(text: str) -> tuple[SlurmStep, ...]:
    """The numbered steps in the output of `scontrol show step -o`, without the batch script."""
    steps = []
    for fields in parse_records(text):
        number, tasks = fields.get("StepId", "").rpartition(".")[2], fields.get("Tasks", "")
        if number.isdecimal() and tasks.isdecimal() and fields.get("State", "RUNNING") == "RUNNING":
            steps.append(
                SlurmStep(
                    number=int(number),
                    name=fields.get("Name", ""),
                    tasks=int(tasks),
                    node_list=fields.get("NodeList", ""),
                )
            )
    return tuple(steps)


def choose_step(job: SlurmJob, wanted: int | None) -> SlurmStep | None:
    """The training's step: the largest that is not perfd's own, the newest of equals.

    None if everything runs in the batch script. Raises `CaptureError` if there is no step `wanted`.
    """
    if wanted is None:
        theirs = [step for step in job.steps if not step.name.startswith(_OURS)]
        return max(theirs, key=lambda step: (step.tasks, step.number), default=None)
    found = next((step for step in job.steps if step.number == wanted), None)
    if found is None:
        known = ", ".join(f"{step.number} ({step.name})" for step in job.steps) or "none"
        raise CaptureError(f"Job {job.name} has no running step {wanted}; there are: {known}.")
    return found


def _no_command(name: str, error: OSError) -> CaptureError:
    return CaptureError(
        f"Cannot run {name} ({error.strerror}): run this where SLURM's commands are, such as a login node."
    )

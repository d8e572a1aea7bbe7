"""Fifty jobs of a real SLURM cluster that end in every way: what is reported, and which alerts fire.

They run in waves, because all nodes are on one machine, where more than ten agents slow each other down.
"""

import contextlib
import os
import shutil
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from deploy.slurm.cluster import USER, Cluster, until

from perfd.aggregator import Aggregator
from perfd.clock import SystemClock
from perfd.config import AggregatorConfig
from perfd.model import Event, EventKind

TOOLS = ("slurmctld", "slurmd", "munged", "srun")
LIBRARY = Path("/usr/lib/x86_64-linux-gnu/slurm-wlm/libslurmfull.so")
pytestmark = [
    pytest.mark.system,
    pytest.mark.timeout(1_800),
    pytest.mark.skipif(
        not (all(map(shutil.which, TOOLS)) and os.geteuid() == 0) and not os.environ.get("CI"),
        reason="needs root and SLURM (Debian packages `slurm-wlm` and `munge`)",
    ),
]
ALL = "PERFD_SLURM_JOBS"
"""With `all`, fifty jobs in 5 to 10 minutes; otherwise twelve."""
PATIENCE_S = 300.0
"""More than anything takes, even on a busy machine."""
OUT_OF_MEMORY = 253
"""SLURM's exit code of a job that exceeded its cgroup's memory limit; these nodes have no cgroups."""
ALERTED = {"failed", "signal", "out_of_memory", "node_failure"}
LONGER_THAN_ANY_ALERT_WAITS_S = 1_800.0
STEP_S = 0.1
"""The step time that trainer.sh prints."""


class ShiftedClock(SystemClock):
    """The machine's clock, which a test can move ahead."""

    def __init__(self) -> None:
        self.ahead_s = 0.0

    def unix_ns(self) -> int:
        return super().unix_ns() + round(self.ahead_s * 1e9)

    def monotonic_s(self) -> float:
        return super().monotonic_s() + self.ahead_s


@pytest.fixture(scope="module")
def clock() -> ShiftedClock:
    return ShiftedClock()


@pytest.fixture(scope="module")
def aggregator(clock: ShiftedClock) -> Iterator[Aggregator]:
    """The aggregator that the Prolog's agents are configured with."""
    aggregator = Aggregator(AggregatorConfig(listen="127.0.0.1:0", http_listen=None), clock)
    aggregator.start()
    yield aggregator
    aggregator.stop()


@dataclass(kw_only=True)
class Job:
    """A submitted job, and what must be known about it in the end."""

    number: str
    title: str
    user: str
    folder: Path
    outcome: str
    steps: int | None
    exit_code: int | None
    submitted_unix_s: float
    begun_unix_s: float = 0.0
    """When its first step was known."""
    freed_unix_s: float = 0.0
    """When it was allowed to end, or was last known to run."""
    over_unix_s: float = 0.0
    attempts: int = 1
    steps_lost: int = 0
    """Fewest steps that were lost when it was restarted."""


@dataclass
class Jobs:
    """All submitted jobs."""

    cluster: Cluster
    aggregator: Aggregator
    submitted: list[Job] = field(default_factory=list)

    def submit(
        self,
        kind: str,
        options: str,
        *lines: str,
        outcome: str = "completed",
        steps: int | None = None,
        exit_code: int | None = None,
    ) -> Job:
        """Submit a job with one task per node, which waits at `{go}` in its lines; users alternate."""
        title = f"{kind}-{len(self.submitted)}"
        user = USER if len(self.submitted) % 2 else "root"
        folder = self.cluster.folder(title, user)
        now_unix_s = time.time()
        held = [line.replace("{go}", "while [ ! -e go ]; do sleep 0.5; done") for line in lines]
        number = self.cluster.submit(
            folder, f"--job-name={title} --ntasks-per-node=1 {options}", *held, user=user
        )
        job = Job(
            number=number,
            title=title,
            user=user,
            folder=folder,
            outcome=outcome,
            steps=steps,
            exit_code=exit_code,
            submitted_unix_s=now_unix_s,
        )
        self.submitted.append(job)
        return job

    def seen(self, job: Job) -> dict[str, Any]:
        known = job.number in self.aggregator.jobs()
        overview = self.aggregator.overview(job.number) if known else []
        return overview[0] if overview else {"outcome": None, "steps": {"count": 0, "last": None}}

    def last_step(self, job: Job) -> int:
        return self.seen(job)["steps"]["last"] or 0

    def step_beyond(self, wave: Sequence[Job], steps: int = 0) -> None:
        """Wait until each job of a wave has more steps."""
        for job in wave:
            until(
                lambda job=job: self.last_step(job) > steps,  # type: ignore[misc]
                f"more than {steps} steps of {job.title}",
                PATIENCE_S,
            )
            self._seen_to_run(job)

    def go(self, wave: Sequence[Job]) -> None:
        """Let jobs continue to their end once all their steps are known."""
        for job in wave:
            until(
                lambda job=job: self.seen(job)["steps"]["last"] == job.steps,  # type: ignore[misc]
                f"{job.steps} steps of {job.title}",
                PATIENCE_S,
            )
            self._seen_to_run(job)
            (job.folder / "go").touch()

    def _seen_to_run(self, job: Job) -> None:
        job.freed_unix_s = time.time()
        job.begun_unix_s = job.begun_unix_s or job.freed_unix_s

    def end(self, wave: Sequence[Job]) -> None:
        """Wait until the Epilogs have reported how the jobs ended."""
        expected = {job.title: job.outcome for job in wave}
        # The assertion below shows the difference.
        with contextlib.suppress(AssertionError):
            until(lambda: self.outcomes(wave) == expected, "the ends of a wave", PATIENCE_S)
        assert self.outcomes(wave) == expected
        for job in wave:
            job.over_unix_s = time.time()

    def outcomes(self, wave: Sequence[Job]) -> dict[str, str | None]:
        return {job.title: self.seen(job)["outcome"] for job in wave}

    def events(self, job: Job) -> list[Event]:
        with self.aggregator.state.lock:
            return list(self.aggregator.state.fleet.jobs[job.number].events)


@pytest.fixture
def jobs(cluster: Cluster, aggregator: Aggregator) -> Jobs:
    return Jobs(cluster, aggregator)


Kind = Generator[None, None, None]
"""Jobs that end in one way: submitted before its only `yield`, ended after it."""


def test_every_way_in_which_a_job_ends_is_reported(jobs: Jobs, clock: ShiftedClock) -> None:
    whole = os.environ.get(ALL) == "all"
    for wave in fifty(jobs) if whole else one_of_each(jobs):
        begun = list(wave)
        for kind in begun:
            next(kind)
        for kind in begun:
            assert next(kind, "done") == "done"
    assert len(jobs.submitted) == (50 if whole else 12)

    for job in jobs.submitted:
        seen = jobs.seen(job)
        assert (seen["title"], seen["outcome"], seen["attempt"]) == (job.title, job.outcome, job.attempts)
        counted = {"count": job.steps, "last": job.steps, "doubt": None}
        assert job.steps is None or seen["steps"] == counted, job.title
        assert job.exit_code is None or seen["exit_code"] == job.exit_code, job.title
        # Steps that were computed twice count once; the time of all attempts and between them counts in full.
        productive_s = seen["steps"]["count"] * STEP_S
        shortest_s, longest_s = job.freed_unix_s - job.begun_unix_s, job.over_unix_s - job.submitted_unix_s
        assert productive_s / longest_s <= seen["goodput_ratio"], job.title
        assert seen["goodput_ratio"] <= min(1.0, productive_s / max(shortest_s, 1e-9)), job.title
        restarts = [event for event in jobs.events(job) if event.kind is EventKind.RESTARTED]
        assert len(restarts) == job.attempts - 1, job.title
        assert all(event.values["lost_steps"] >= job.steps_lost for event in restarts), job.title
    # Only the agents of the lost node disconnected without signing off.
    jobs.aggregator.tick()
    silent = {
        agent["node"] for agent in jobs.aggregator.agents() if not agent["connected"] and not agent["left"]
    }
    assert {node.partition("~")[0] for node in silent} == {"n4"}

    alerts = set()
    for _ in range(60):
        clock.ahead_s += LONGER_THAN_ANY_ALERT_WAITS_S / 60
        jobs.aggregator.tick()
        alerts |= {(alert["name"], alert["job"]) for alert in jobs.aggregator.alerts() if alert["job"]}
    assert alerts == {("PerfdJobFailed", job.number) for job in jobs.submitted if job.outcome in ALERTED}


def fifty(jobs: Jobs) -> Iterator[Sequence[Kind]]:
    """Waves with at most ten agents; jobs that reach their time limit run beside the first four."""
    late = reach_their_time_limit(jobs, 3)
    next(late)
    yield [are_cancelled(jobs, 6)]
    yield [are_requeued(jobs, 5)]
    yield [use_up_their_memory(jobs, 3), are_preempted(jobs, 2)]
    yield [die_by_a_signal(jobs, 4), complete(jobs, 3)]
    assert next(late, "done") == "done"
    yield [fail(jobs, 8)]
    yield [complete(jobs, 10)]
    yield [lose_a_node(jobs, 4)]


def one_of_each(jobs: Jobs) -> Iterator[Sequence[Kind]]:
    # SLURM checks time limits every half minute; the others end in the meantime.
    yield [
        are_cancelled(jobs, 1),
        are_requeued(jobs, 1),
        use_up_their_memory(jobs, 1),
        are_preempted(jobs, 1),
        fail(jobs, 1),
        die_by_a_signal(jobs, 1),
        complete(jobs, 1),
        reach_their_time_limit(jobs, 1),
    ]
    yield [lose_a_node(jobs, 2)]


def waits(jobs: Jobs) -> str:
    """The command of a training that does not end by itself."""
    return f"srun {jobs.cluster.trainer} 30000 0.5"


def restarts(jobs: Jobs) -> str:
    """The command of a job that ends by itself only after a restart."""
    again = f"srun {jobs.cluster.trainer} 7; {{go}}"
    return f"if [ ${{SLURM_RESTART_COUNT:-0}} = 0 ]; then {waits(jobs)}; else {again}; fi"


def on_node(number: int) -> str:
    return f"--nodes=1 --nodelist=n{1 + number % 3}"


def reach_their_time_limit(jobs: Jobs, count: int) -> Kind:
    wave = [
        jobs.submit("late", f"{on_node(n)} --time=1", waits(jobs), outcome="time_limit") for n in range(count)
    ]
    yield
    jobs.end(wave)


def are_cancelled(jobs: Jobs, count: int) -> Kind:
    wave = [jobs.submit("cancelled", on_node(n), waits(jobs), outcome="cancelled") for n in range(count)]
    yield
    jobs.step_beyond(wave)
    jobs.cluster("scancel", *(job.number for job in wave))
    jobs.end(wave)


def are_requeued(jobs: Jobs, count: int) -> Kind:
    wave = [
        jobs.submit("requeued", f"--requeue {on_node(n)}", restarts(jobs), outcome="preempted", steps=7)
        for n in range(count)
    ]
    yield
    jobs.step_beyond(wave, 7)
    for job in wave:
        jobs.cluster("scontrol", "requeuehold", job.number)
    start_again(jobs, wave, lambda: jobs.cluster("scontrol", "release", *(job.number for job in wave)))


def start_again(jobs: Jobs, wave: Sequence[Job], start: Callable[[], object]) -> None:
    """The second attempt of queued jobs; the end of the first is known by then."""
    jobs.end(wave)
    for job in wave:
        job.outcome, job.attempts, job.steps_lost = "completed", 2, jobs.last_step(job)
    start()
    jobs.go(wave)
    jobs.end(wave)


def use_up_their_memory(jobs: Jobs, count: int) -> Kind:
    wave = [jobs.submit("memory", on_node(n), waits(jobs), outcome="out_of_memory") for n in range(count)]
    yield
    jobs.step_beyond(wave)
    for job in wave:
        out_of_memory(jobs.cluster, job.number)
    jobs.end(wave)


def are_preempted(jobs: Jobs, count: int) -> Kind:
    """By a job of a partition with priority: requeued, or canceled if their user forbids requeuing."""
    place = "--nodelist=n5 --cpus-per-task=5"
    wave = [
        jobs.submit("preempted", f"--requeue {place}", restarts(jobs), outcome="preempted", steps=7)
        for _ in range(count)
    ]
    displaced = jobs.submit("displaced", f"--no-requeue {place}", waits(jobs), outcome="preempted")
    yield
    jobs.step_beyond([*wave, displaced], 7)
    urgent = jobs.submit(
        "urgent",
        "--partition=urgent --nodelist=n5 --cpus-per-task=16",
        f"srun {jobs.cluster.trainer} 5",
        "{go}",
        steps=5,
    )
    jobs.end([displaced])
    start_again(jobs, wave, lambda: jobs.go([urgent]))
    jobs.end([urgent])


def complete(jobs: Jobs, count: int) -> Kind:
    wave = [
        jobs.submit("done", on_node(n), f"srun {jobs.cluster.trainer} {8 + n}", "{go}", steps=8 + n)
        for n in range(count)
    ]
    yield
    jobs.go(wave)
    jobs.end(wave)


def fail(jobs: Jobs, count: int) -> Kind:
    yield from _exit(jobs, "failed", {code: f"exit {code}" for code in range(1, 1 + count)})


def die_by_a_signal(jobs: Jobs, count: int) -> Kind:
    signals = [("SEGV", 139), ("ABRT", 134), ("BUS", 135), ("KILL", 137)][:count]
    yield from _exit(
        jobs, "signal", {code: f"srun bash -c 'kill -{name} $$'; exit $?" for name, code in signals}
    )


def _exit(jobs: Jobs, outcome: str, lines: Mapping[int, str]) -> Kind:
    """Jobs with different exit codes, by their last lines."""
    training = f"srun {jobs.cluster.trainer} 6"
    wave = [
        jobs.submit(outcome, on_node(code), training, "{go}", line, outcome=outcome, steps=6, exit_code=code)
        for code, line in lines.items()
    ]
    yield
    jobs.go(wave)
    jobs.end(wave)


def lose_a_node(jobs: Jobs, count: int) -> Kind:
    """The first or second node of jobs; the Epilog of the other node reports how they ended."""
    nodes = ("n4,n5", "n3,n4")
    wave = [
        jobs.submit(
            "lost", f"--no-requeue --nodes=2 --nodelist={nodes[n % 2]}", waits(jobs), outcome="node_failure"
        )
        for n in range(count)
    ]
    yield
    jobs.step_beyond(wave)
    jobs.cluster.lose("n4")
    jobs.end(wave)


def out_of_memory(cluster: Cluster, job: str) -> None:
    """Report to slurmctld that a job ran out of memory, as slurmstepd does."""
    code = (
        "import ctypes, sys\n"
        f"library = ctypes.CDLL({str(LIBRARY)!r}, mode=ctypes.RTLD_GLOBAL)\n"
        "library.slurm_conf_init(None)\n"
        f"sys.exit(library.slurm_complete_job({job}, {OUT_OF_MEMORY}) != 0)\n"
    )
    cluster("python3", "-c", code)

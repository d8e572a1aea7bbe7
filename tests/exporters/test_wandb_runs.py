"""In which processes runs are, and what happens to them when one fails."""

import pytest

from perfd.config import WandbConfig
from perfd.exporters.wandb.wandb_messages import CloseRun, LogNumbers, OpenRun
from perfd.exporters.wandb.wandb_process import RefusedByWandbError
from perfd.exporters.wandb.wandb_runs import RunLostError, WandbRuns

CONFIG = WandbConfig(mode="offline")
ROW = LogNumbers({"perfd/step": 1.0})


class Processes:
    """Starts processes that open no run of a job in `refused`, and end over what one in `deadly` sends."""

    def __init__(self):
        self.started = []
        self.refused = set()
        self.deadly = set()

    def __call__(self):
        self.started.append(Process(self))
        return self.started[-1]

    @property
    def alive(self):
        return [process.jobs for process in self.started if process.alive]


class Process:
    """As W&B's: a run that it could not open once is never opened."""

    def __init__(self, world):
        self.world, self.alive, self.jobs, self.stuck = world, True, [], set()

    def send(self, job, message, *, timeout_s):
        match message:
            case OpenRun():
                if job in self.world.refused | self.stuck:
                    self.stuck.add(job)
                    raise RefusedByWandbError("401")
                self.jobs.append(job)
            case CloseRun():
                self.jobs.remove(job)
            case _ if job in self.world.deadly:
                self.alive = False
                raise TimeoutError("timed out")

    def hang_up(self):
        self.alive = False

    def end(self, within_s):
        self.alive = False


@pytest.fixture
def world():
    return Processes()


@pytest.fixture
def runs(world):
    return WandbRuns(world)


def opened(runs, *jobs):
    for job in jobs:
        runs.open(job, CONFIG, {})


def test_all_jobs_share_one_process_which_ends_with_the_last_of_them(world, runs):
    jobs = [str(number) for number in range(50)]
    opened(runs, *jobs, *jobs)
    assert world.alive == [jobs]
    for job in jobs:
        runs.close(job)
    assert world.alive == []
    opened(runs, "next")
    assert world.alive == [["next"]]


def test_a_refused_job_leaves_the_others_alone_and_no_process_behind(world, runs):
    opened(runs, "a")
    world.refused.add("b")
    for _ in range(5):
        with pytest.raises(OSError, match="401"):
            runs.open("b", CONFIG, {})
        assert world.alive == [["a"]]
    world.refused.clear()
    opened(runs, "b", "c")
    assert world.alive == [["a", "c"], ["b"]]


def test_after_an_outage_at_the_start_all_jobs_share_one_process(world, runs):
    world.refused |= {"a", "b", "c"}
    for job in "abcabc":
        with pytest.raises(OSError, match="401"):
            runs.open(job, CONFIG, {})
    assert world.alive == []
    world.refused.clear()
    opened(runs, *"abc")
    assert world.alive == [["a", "b", "c"]]


def test_a_job_that_ends_its_process_does_so_to_the_others_once_only(world, runs):
    opened(runs, *"abc")
    world.deadly.add("b")
    with pytest.raises(TimeoutError):
        runs.send("b", ROW)
    for job in "ac":
        with pytest.raises(RunLostError):
            runs.send(job, ROW)
    opened(runs, *"abc")
    assert world.alive == [["a", "c"], ["b"]]
    with pytest.raises(TimeoutError):
        runs.send("b", ROW)
    runs.send("a", ROW)
    # A new one does not join the job that may fail again.
    opened(runs, "b", "d")
    assert world.alive == [["a", "c", "d"], ["b"]]
    runs.close("b")
    world.deadly.clear()
    opened(runs, "b")
    assert world.alive == [["a", "c", "d", "b"]]


def test_the_end_ends_every_process(world, runs):
    world.refused.add("b")
    opened(runs, "a")
    with pytest.raises(OSError, match="401"):
        runs.open("b", CONFIG, {})
    world.refused.clear()
    opened(runs, "b")
    runs.close_all()
    assert world.alive == []

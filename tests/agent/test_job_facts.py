"""What the agent remembers of a job for its captures."""

from perfd.agent.capture_setup import JobFacts
from perfd.agent.uplink.outgoing import put_status
from perfd.capture.expected_job_end import Pace
from perfd.capture.node.job_guards import GuardSettings, refusal
from perfd.model import (
    CaptureState,
    CaptureStatus,
    Event,
    EventKind,
    JobDescription,
    LogProgress,
    RankPlacement,
    TrainingStep,
)


def test_a_jobs_progress_is_put_together_from_its_records():
    facts = JobFacts()
    facts(
        [
            JobDescription(
                job="llama",
                framework="megatron",
                train_steps=60,
                arguments={"save_interval": "50", "distributed_timeout_minutes": "20"},
            ),
            TrainingStep(job="llama", step=1, step_time_s=30.0, warmup=True),
            TrainingStep(job="llama", step=2, step_time_s=2.0, steps_covered=5, time_unix_ns=10**9),
            LogProgress(
                job="llama", stream="log", lines=3, read_bytes=9, unrecognized_lines=0, last_line_unix_ns=7
            ),
            Event(kind=EventKind.CHECKPOINT, time_unix_ns=8, message="saved", job="llama", step=50),
            Event(kind=EventKind.LOG_ERROR, time_unix_ns=8, message="of nobody"),
        ]
    )
    job = facts.progress("llama")
    assert (job.step, job.step_time_s, job.steps_per_line) == (2, 2.0, 5)
    assert (job.checkpoint_interval_steps, job.last_checkpoint_step) == (50, 50)
    assert (job.nccl_timeout_s, job.last_line_unix_ns) == (1200.0, 7)
    assert job.pace == Pace(step=2, stepped_unix_s=1.0, train_steps=60, step_time_s=2.0)
    assert facts.progress("other").step is None


def test_a_checkpoint_counts_as_saved_only_when_it_is():
    facts = JobFacts()
    facts(
        [
            JobDescription(job="llama", framework="megatron", arguments={"save_interval": "50"}),
            TrainingStep(job="llama", step=50, step_time_s=2.0),
            Event(kind=EventKind.CHECKPOINT_STARTED, time_unix_ns=8, message="", job="llama", step=50),
        ]
    )
    assert "saves a checkpoint after step 50" in refusal(facts.progress("llama"), GuardSettings(), 9)
    facts([Event(kind=EventKind.CHECKPOINT, time_unix_ns=9, message="", job="llama", step=50)])
    assert not refusal(facts.progress("llama"), GuardSettings(), 9)


def test_a_checkpoint_that_the_log_says_has_begun_needs_no_interval():
    facts = JobFacts()
    started = Event(kind=EventKind.CHECKPOINT_STARTED, time_unix_ns=8, message="", job="llama", step=7)
    facts([TrainingStep(job="llama", step=7, step_time_s=2.0), started])
    assert "saves a checkpoint after step 7" in refusal(facts.progress("llama"), GuardSettings(), 9)
    facts([TrainingStep(job="llama", step=8, step_time_s=2.0)])
    assert not refusal(facts.progress("llama"), GuardSettings(), 9)


def test_the_newest_place_of_a_rank_counts():
    facts = JobFacts()
    facts([RankPlacement(job="llama", rank=0, pid=1), RankPlacement(job="llama", rank=0, pid=2)])
    assert [place.pid for place in facts.placements("llama")] == [2]


def test_a_job_ends_by_its_options_and_by_the_limit_of_its_ranks():
    facts = JobFacts()
    arguments = {"exit_interval": "40", "exit_duration_in_mins": "10"}
    facts([JobDescription(job="llama", framework="megatron-lm", arguments=arguments)])
    assert facts.progress("llama").exit_unix_s is None, "no process of it is known"
    facts([RankPlacement(job="llama", rank=0, started_unix_ns=5_000_000_000, time_limit_unix_s=900.0)])
    pace = facts.progress("llama").pace
    assert (pace.exit_interval_steps, pace.exit_unix_s, pace.limit_unix_s) == (40, 605.0, 900.0)


def test_ranks_that_end_in_different_ways_do_not_replace_each_other():
    statuses = {}
    for state, ranks in (
        (CaptureState.RUNNING, (0, 1)),
        (CaptureState.EMPTY, (0,)),
        (CaptureState.DONE, (1,)),
    ):
        put_status(statuses, CaptureStatus(capture_id="c1", state=state, time_unix_ns=0, ranks=ranks))
    assert [status.state for status in statuses.values()] == [CaptureState.EMPTY, CaptureState.DONE]

"""A job that prints nothing for a long time and works is not said to hang; one that shows no work is."""

from __future__ import annotations

import pytest
from aggregator.support import START_S, aggregator, gpus, place, step
from aggregator.test_job_end import ROUND_S, RULES, Fleet

from perfd.clock import VirtualClock
from perfd.model import CollectiveTimes, TimingSource

SILENCE = {"PerfdLogSilent", "PerfdJobHangs"}


@pytest.fixture
def fleet():
    clock = VirtualClock(round(START_S * 1e9))
    with aggregator(clock, rules=RULES) as running:
        yield Fleet(running, clock)


def operations(fleet, first):
    """Of one rank, the ten that ended since the last round."""
    end_ns = fleet.clock.unix_ns()
    return CollectiveTimes(
        job="llm",
        rank=0,
        communicator="c0",
        communicator_rank=0,
        communicator_size=2,
        operation="AllReduce",
        timing=TimingSource.GPU,
        start_unix_ns=end_ns - round(ROUND_S * 1e9),
        end_unix_ns=end_ns,
        count=10,
        total_bytes=10e6,
        total_s=0.1,
        min_s=0.01,
        max_s=0.01,
        sequences=list(range(first, first + 10)),
        durations_ns=[10_000_000] * 10,
        sizes_bytes=[1_000_000] * 10,
    )


def goes_on(fleet, agent, minutes, *, operating=False, tensor=0.0):
    """The job prints nothing; its GPU's multiprocessors are busy, with a kernel that computes or waits."""
    number = 0

    def send():
        nonlocal number
        busy = gpus(fleet.now_s, sm_active_ratio=0.9, tensor_active_ratio=tensor)
        records = [place(0, 0), busy]
        if operating:
            records.append(operations(fleet, number))
            number += 10
        agent.send(*records, sent_unix_ns=fleet.clock.unix_ns())

    fleet.minutes(minutes, send)


@pytest.mark.parametrize(("operating", "tensor"), [(True, 0.0), (False, 0.4)])
def test_a_quiet_job_that_works_fires_no_alert_about_silence_until_it_stops(fleet, operating, tensor):
    with fleet.agent() as agent:
        fleet.works(agent, range(1, 9))
        goes_on(fleet, agent, 20, operating=operating, tensor=tensor)
        page = fleet.page()
        assert page['perfd_log_silent_seconds{perfd_job="llm"}'] == 1200
        # Without operations, GPUs are asked for once nothing else was seen for a minute.
        assert page['perfd_idle_seconds{perfd_job="llm"}'] <= 75
        assert not SILENCE & set(fleet.fired)
        goes_on(fleet, agent, 8)
        assert fleet.fired["PerfdLogSilent"] == "firing"
        goes_on(fleet, agent, 10)
        assert (fleet.fired["PerfdLogSilent"], fleet.fired["PerfdJobHangs"]) == ("resolved", "firing")


def test_a_quiet_job_whose_gpus_wait_in_nccl_fires_as_before(fleet):
    with fleet.agent() as agent:
        fleet.works(agent, range(1, 9))
        goes_on(fleet, agent, 16)
        assert fleet.fired["PerfdJobHangs"] == "firing"


def test_a_job_that_no_longer_steps_is_said_to_stand_though_nothing_else_is_news(fleet):
    def said():
        return list(fleet.status()["bottleneck"]["evidence"])

    with fleet.agent() as agent:
        for number in range(1, 21):
            fleet.clock.advance(1.0)
            now = step(number, time_s=fleet.now_s, step_time_s=1.0)
            agent.send(now, fleet.log(), place(0, 0), sent_unix_ns=fleet.clock.unix_ns())
            fleet.round()
        still = "No step since step 20: longer than any earlier pause of this job."
        assert still not in said()
        for _ in range(40):
            fleet.clock.advance(1.0)
            fleet.round()
        assert said()[0] == still

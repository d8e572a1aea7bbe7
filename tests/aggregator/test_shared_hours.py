import copy

import pytest
from aggregator.support import START_S, aggregator, step

from perfd.aggregator.web_api.api_documents import fleet_json
from perfd.clock import VirtualClock
from perfd.model import GpuInfo, JobDescription, ParallelLayout
from tests.support.fake_agent import FakeAgent


def rep(o, **k):
    o = copy.copy(o)
    for a, b in k.items():
        object.__setattr__(o, a, b)
    return o


def test_the_wasted_hours_of_jobs_that_share_gpus_are_of_these_gpus():
    jobs = ("llm", "other")
    with (
        aggregator(VirtualClock(round(START_S * 1e9))) as running,
        FakeAgent(running.grpc_address, node="n0") as agent,
    ):
        agent.hello()
        agent.send(*(GpuInfo(index=index, name="NVIDIA H200") for index in range(8)))
        agent.send(
            *(
                JobDescription(job=job, framework="megatron", parallel=ParallelLayout(world_size=8))
                for job in jobs
            )
        )
        agent.send(*(step(number, job=job) for job in jobs for number in (1, 2)))
        running.tick()
        live = {}
        for job in jobs:
            (summary,) = running.summary(job)
            live[job] = rep(summary, findings=[rep(summary.bottleneck, gain_ratio=0.5)])
            running.state.fleet.jobs[job].attempts.started_unix_s = START_S
        document = fleet_json(running.state, live, [], [], now_s=3600.0, now_unix_s=START_S + 3600)
    assert sum(row["wasted_gpu_h"] for row in document["jobs"]) == pytest.approx(8 * 0.5)

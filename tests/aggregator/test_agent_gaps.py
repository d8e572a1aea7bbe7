"""/api/v1/agents names what agents do not provide, with the reason and a command."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from aggregator.support import START_S, aggregator, gpus, step

from perfd import __version__
from perfd.aggregator.state.agent_registry import AgentState
from perfd.model import CaptureTool, CollectorHealth, JobDescription, RankPlacement
from tests.support.fake_agent import FakeAgent

NOW_NS = round(START_S * 1e9)


def missing(running: Any, node: str = "node0") -> Mapping[str, Mapping[str, Any]]:
    (agent,) = [one for one in running.agents() if one["node"] == node]
    # A fake agent reports version "test".
    return {one["what"]: one for one in agent["missing"] if one["what"] != "version"}


def test_a_complete_agent_lacks_nothing() -> None:
    with aggregator() as running, FakeAgent(running.grpc_address) as agent:
        agent.hello(tools=(CaptureTool.NSYS,), sent_unix_ns=NOW_NS)
        agent.send(
            RankPlacement(job="llm", rank=0, gpu=0), step(1, job="llm"), gpus(START_S, power_w=[500.0]),
            CollectorHealth(collector="nvml", time_unix_ns=NOW_NS, duration_s=0.1, success=True),
            sent_unix_ns=NOW_NS,
        )  # fmt: skip
        assert missing(running) == {}


def test_what_a_node_with_ranks_lacks_is_named_with_a_command() -> None:
    with aggregator() as running, FakeAgent(running.grpc_address) as agent:
        agent.hello(sent_unix_ns=NOW_NS)
        failing = CollectorHealth(
            collector="infiniband",
            time_unix_ns=NOW_NS,
            duration_s=0.1,
            success=False,
            message="No /sys here.",
        )
        agent.send(
            JobDescription(job="my job", framework="megatron"),
            *(RankPlacement(job="my job", rank=rank, gpu=rank) for rank in range(2)),
            failing, sent_unix_ns=NOW_NS,
        )  # fmt: skip
        found = missing(running)
        assert set(found) == {"capture tools", "infiniband", "GPU counters", "log", "NCCL plugin"}
        assert found["infiniband"]["words"] == "No /sys here."
        assert found["capture tools"]["command"] == "perfd doctor"
        assert found["NCCL plugin"]["command"] == "perfd run --job 'my job' -- COMMAND"
        assert "my job" in found["log"]["words"]

        # Steps and GPU readings are no longer missing.
        agent.send(step(1, job="my job"), gpus(START_S, power_w=[500.0]), sent_unix_ns=NOW_NS)
        assert set(missing(running)) == {"capture tools", "infiniband", "NCCL plugin"}


def test_a_node_without_ranks_needs_no_gpu_and_no_plugin() -> None:
    with aggregator() as running, FakeAgent(running.grpc_address) as agent:
        agent.hello(tools=(CaptureTool.PY_SPY,), sent_unix_ns=NOW_NS)
        agent.send(sent_unix_ns=NOW_NS)
        assert missing(running) == {}


@pytest.mark.parametrize(("off_s", "named"), [(0.9, False), (-0.9, False), (1.1, True), (-1.1, True)])
def test_a_clock_that_is_a_second_off_is_named(off_s: float, named: bool) -> None:
    with aggregator() as running, FakeAgent(running.grpc_address) as agent:
        sent_unix_ns = NOW_NS + round(off_s * 1e9)
        agent.hello(tools=(CaptureTool.PY_SPY,), sent_unix_ns=sent_unix_ns)
        agent.send(sent_unix_ns=sent_unix_ns)
        assert set(missing(running)) == ({"clock"} if named else set())


def test_a_disconnected_agent_is_named_and_one_that_left_lacks_nothing() -> None:
    with aggregator() as running:
        with FakeAgent(running.grpc_address) as agent:
            agent.hello(tools=(CaptureTool.PY_SPY,), sent_unix_ns=NOW_NS)
        while running.agents()[0]["connected"]:
            pass
        assert missing(running)["connection"]["command"] == "perfd doctor"
        with FakeAgent(running.grpc_address) as agent:
            agent.hello(tools=(CaptureTool.PY_SPY,), sent_unix_ns=NOW_NS)
            agent.leave(sent_unix_ns=NOW_NS)
        assert running.agents()[0]["missing"] == []


def test_a_different_version_is_named() -> None:
    with aggregator() as running, FakeAgent(running.grpc_address) as agent:
        agent.hello(tools=(CaptureTool.PY_SPY,), sent_unix_ns=NOW_NS)
        (gap,) = running.agents()[0]["missing"]
        assert gap["what"] == "version"
        assert f"perfd test, the aggregator {__version__}" in gap["words"]


def test_the_lag_is_how_much_longer_the_newest_batch_took_than_the_fastest() -> None:
    agent = AgentState(agent_id="a", node="n")
    assert agent.lag_s is None
    for delay_s in (0.2, 0.1, 7.1):
        agent.saw_clock(NOW_NS, NOW_NS + round(delay_s * 1e9))
    assert agent.lag_s == pytest.approx(7.0)

"""Agents are notified of new findings of their jobs."""

from aggregator.support import START_S, aggregator, gpus, place, step

from perfd.aggregator.notices.finding_news import FindingNews
from perfd.analysis.findings import Kind
from perfd.clock import VirtualClock
from perfd.model import GpuInfo
from tests.support.fake_agent import FakeAgent


def test_a_job_is_news_once_it_has_another_finding() -> None:
    news = FindingNews()
    assert news.take({"a": {Kind.NONE}, "b": {Kind.STRAGGLER}}, 0.0) == ["b"]
    assert news.take({"a": {Kind.UNKNOWN}, "b": {Kind.STRAGGLER}}, 1.0) == []
    assert news.take({"a": {Kind.HANG}, "b": set()}, 2.0) == ["a"]


def test_what_comes_and_goes_is_reported_seldom_and_never_forgotten() -> None:
    news = FindingNews()
    reported = [now_s for now_s in range(100) if news.take({"a": {Kind.HANG} if now_s % 2 else set()}, now_s)]
    assert reported == [1, 31, 61, 91]
    # One that came meanwhile and stays is reported once it may be.
    assert [now_s for now_s in range(100, 140) if news.take({"a": {Kind.STRAGGLER}}, now_s)] == [121]


def test_a_job_that_comes_back_is_another_one() -> None:
    news = FindingNews()
    assert news.take({"a": {Kind.HANG}}, 0.0) == ["a"]
    assert news.take({}, 1.0) == []
    assert news.take({"a": {Kind.HANG}}, 2.0) == ["a"]


def test_the_agents_of_the_job_and_no_others_are_notified() -> None:
    clock = VirtualClock(round(START_S * 1e9))
    with (
        aggregator(clock) as running,
        FakeAgent(running.grpc_address, node="n0", agent_id="a0") as first,
        FakeAgent(running.grpc_address, node="n1", agent_id="a1") as other,
    ):
        for agent, job, used_bytes in ((first, "full", 85e9), (other, "fine", 20e9)):
            agent.hello()
            agent.send(
                GpuInfo(index=0, name="NVIDIA H100 80GB HBM3", memory_bytes=80 << 30), place(0, 0, job=job)
            )
            for number in range(1, 30):
                now_s = START_S + number
                agent.send(
                    step(number, job=job, time_s=now_s),
                    gpus(now_s, memory_used_bytes=used_bytes, sm_active_ratio=0.9, tensor_active_ratio=0.6),
                    sent_unix_ns=round(now_s * 1e9),
                )
        for _ in range(3):
            clock.advance(1.0)
            running.tick()
        for agent, job in ((first, "full"), (other, "fine")):
            agent.send(step(30, job=job, time_s=START_S + 30))
        assert first.new_findings == ["full"]
        assert other.new_findings == []

"""Jobs and agents that end well, badly, or without a word: the alerts that are due, and no others."""

import contextlib

import pytest
from aggregator.support import START_S, aggregator, gpus, place, step, values
from exporters.support import until

from perfd.clock import VirtualClock
from perfd.config import HistoryConfig, RulesConfig
from perfd.model import CollectorHealth, Event, EventKind, JobOutcome, LogProgress, RankPlacement
from tests.support.fake_agent import FakeAgent

RULES = RulesConfig(interval_s=15.0)
ROUND_S = 15.0


@pytest.fixture
def clock():
    return VirtualClock(round(START_S * 1e9))


class Fleet:
    """Agents of one job in front of an aggregator with the shipped rules; time goes on when told to."""

    def __init__(self, running, clock):
        self.running = running
        self.clock = clock
        self.fired = {}

    @property
    def now_s(self):
        return self.clock.unix_ns() / 1e9

    def works(self, agent, numbers, *, ranks=True):
        """Steps, one each round, of a job whose rank is on the agent's node."""
        for number in numbers:
            self.clock.advance(ROUND_S)
            records = [
                step(number, time_s=self.now_s, step_time_s=ROUND_S, loss=self.now_s % 1000),
                gpus(self.now_s, sm_active_ratio=0.9),
                CollectorHealth(
                    collector="nvml", time_unix_ns=self.clock.unix_ns(), duration_s=0.1, success=True
                ),
                self.log(),
            ]
            if ranks:
                records.insert(0, place(0, 0))
            agent.send(*records, sent_unix_ns=self.clock.unix_ns())
            self.round()

    def log(self):
        return LogProgress(
            job="llm",
            stream="train.log",
            lines=1,
            read_bytes=1,
            unrecognized_lines=0,
            last_line_unix_ns=self.clock.unix_ns(),
        )

    def reports(self, agent, kind, **fields):
        event = Event(kind=kind, time_unix_ns=self.clock.unix_ns(), message="", job="llm", **fields)
        agent.send(event, sent_unix_ns=self.clock.unix_ns())

    def goodbye(self, agent):
        agent.leave(sent_unix_ns=self.clock.unix_ns())
        until(lambda: not self.connected(agent))

    def connected(self, agent):
        return any(one["connected"] and one["node"] == agent.node for one in self.running.agents())

    def minutes(self, minutes, meanwhile=lambda: None):
        for _ in range(round(minutes * 60 / ROUND_S)):
            self.clock.advance(ROUND_S)
            meanwhile()
            self.round()

    def round(self):
        self.running.tick()
        for alert in self.running.alerts():
            self.fired[alert["name"]] = alert["state"]

    def page(self):
        return values(self.running.page())

    def of_job(self, job="llm"):
        """The series of a job."""
        return [name for name in self.page() if f'job="{job}"' in name]

    def status(self):
        (job,) = self.running.overview("llm")
        return job

    def agent(self, agent_id="a", node="n0"):
        agent = FakeAgent(self.running.grpc_address, agent_id=agent_id, node=node)
        agent.hello(sent_unix_ns=self.clock.unix_ns())
        return agent


@pytest.fixture
def fleet(clock):
    with aggregator(clock, rules=RULES) as running:
        yield Fleet(running, clock)


def test_a_job_whose_agent_said_goodbye_ends_with_an_unknown_outcome_and_no_alert(fleet):
    agent = fleet.agent()
    fleet.works(agent, range(1, 9))
    left_s = fleet.now_s
    fleet.goodbye(agent)
    fleet.minutes(2)
    job = fleet.status()
    assert (job["ended"], job["outcome"], job["exit_code"]) == (True, "unknown", None)
    assert job["ended_unix_s"] == left_s
    assert fleet.page()['perfd_job_outcome_info{outcome="unknown",perfd_job="llm"}'] == 1
    fleet.minutes(20)
    assert fleet.fired == {}


def test_an_agent_that_said_goodbye_and_the_series_of_its_node_are_absent_not_zero(fleet):
    agent = fleet.agent()
    fleet.works(agent, range(1, 5))
    assert fleet.page()['perfd_agent_up{node="n0"}'] == 1
    fleet.goodbye(agent)
    fleet.round()
    assert [name for name in fleet.page() if 'node="n0"' in name] == []
    assert fleet.running.fleet()["agents"] == {"count": 0, "connected": 0}


def test_an_agent_that_comes_back_has_the_series_of_its_new_collectors_only(fleet):
    def health(collector, duration_s):
        return CollectorHealth(
            collector=collector, time_unix_ns=fleet.clock.unix_ns(), duration_s=duration_s, success=True
        )

    agent = fleet.agent()
    agent.send(health("nvml", 0.1), health("host", 0.2))
    fleet.round()
    fleet.goodbye(agent)
    fleet.agent("b").send(health("host", 0.3))
    fleet.round()
    name = "perfd_collector_duration_seconds"
    assert {key: value for key, value in fleet.page().items() if name in key} == {
        f'{name}{{collector="host",node="n0"}}': 0.3
    }


def test_an_agent_that_vanished_is_down_and_its_silent_job_hangs(fleet):
    agent = fleet.agent()
    fleet.works(agent, range(1, 9))
    agent.__exit__()
    until(lambda: not fleet.connected(agent))
    fleet.minutes(2)
    assert fleet.page()['perfd_agent_up{node="n0"}'] == 0
    fleet.minutes(14)
    assert not fleet.status()["ended"]
    assert fleet.fired["PerfdAgentDown"] == fleet.fired["PerfdJobHangs"] == "firing"


def test_a_restart_that_makes_no_step_is_an_alert_until_its_first_step(fleet):
    with fleet.agent() as agent:
        fleet.works(agent, range(1, 9))
        started_unix_ns = fleet.clock.unix_ns()
        agent.send(
            RankPlacement(job="llm", rank=0, gpu=0, started_unix_ns=started_unix_ns - 3600 * 10**9),
            sent_unix_ns=started_unix_ns,
        )
        fleet.clock.advance(1.0)

        def loads():
            again = RankPlacement(job="llm", rank=0, gpu=0, started_unix_ns=started_unix_ns + 10**9)
            agent.send(again, fleet.log(), sent_unix_ns=fleet.clock.unix_ns())

        fleet.minutes(1.75, loads)
        assert fleet.fired == {}
        fleet.minutes(1, loads)
        assert fleet.fired == {"PerfdRestartWithoutStep": "firing"}
        assert fleet.page()['perfd_first_step_seconds{perfd_job="llm"}'] <= ROUND_S
        fleet.works(agent, range(9, 11))
        assert fleet.fired == {"PerfdRestartWithoutStep": "resolved"}
        assert not [name for name in fleet.of_job() if "stepless" in name]
        assert fleet.page()['perfd_job_attempt{perfd_job="llm"}'] == 2


def test_ranks_that_are_gone_for_a_minute_have_ended_and_raise_no_alert(fleet):
    with fleet.agent() as agent:
        fleet.works(agent, range(1, 9))
        fleet.reports(agent, EventKind.RANKS_GONE)
        fleet.minutes(0.75)
        assert not fleet.status()["ended"]
        fleet.minutes(0.25)
        assert fleet.status()["outcome"] == "unknown"
        # The agent of the node goes on, and the idle GPU is nobody's any more.
        idle = lambda: agent.send(  # noqa: E731
            gpus(fleet.now_s, sm_active_ratio=0.0), sent_unix_ns=fleet.clock.unix_ns()
        )
        fleet.minutes(30, idle)
    assert fleet.fired == {}
    assert fleet.of_job() == []


def test_silence_is_no_alert_in_the_minute_in_which_ranks_may_come_back(fleet):
    with fleet.agent() as agent:
        fleet.works(agent, range(1, 9))
        fleet.minutes(4.75)
        fleet.reports(agent, EventKind.RANKS_GONE)
        fleet.minutes(20)
    assert fleet.fired == {}


def test_a_job_has_ended_when_the_ranks_of_all_its_nodes_are_gone(fleet):
    with fleet.agent("a", "n0") as one, fleet.agent("b", "n1") as two:
        fleet.works(one, range(1, 3))
        two.send(place(1, 0), sent_unix_ns=fleet.clock.unix_ns())
        fleet.reports(one, EventKind.RANKS_GONE)
        fleet.minutes(2)
        assert not fleet.status()["ended"]
        fleet.goodbye(two)
        fleet.minutes(2)
        assert fleet.status()["ended"]


def test_workers_that_torchelastic_starts_again_are_no_end(fleet):
    with fleet.agent() as agent:
        fleet.works(agent, range(1, 9))
        fleet.reports(agent, EventKind.RANKS_GONE)
        fleet.minutes(0.75)
        fleet.reports(agent, EventKind.JOB_STARTED)
        agent.send(place(0, 0), sent_unix_ns=fleet.clock.unix_ns())
        fleet.minutes(2)
        assert not fleet.status()["ended"]
        fleet.works(agent, range(5, 9))
    assert fleet.status()["attempt"] == 2
    assert fleet.fired == {}


def test_an_agent_that_is_upgraded_ends_nothing(fleet):
    agent = fleet.agent()
    fleet.works(agent, range(1, 9))
    fleet.goodbye(agent)
    fleet.minutes(0.5)
    with fleet.agent() as agent:
        agent.sequence = 8
        fleet.works(agent, range(9, 20))
        assert fleet.status()["attempt"] == 1
        assert fleet.page()['perfd_agent_up{node="n0"}'] == 1
    assert fleet.fired == {}


@pytest.mark.parametrize(
    ("outcome", "code", "fires"),
    [
        (JobOutcome.COMPLETED, 0, False),
        (JobOutcome.FAILED, 1, True),
        (JobOutcome.SIGNAL, 139, True),
        (JobOutcome.OUT_OF_MEMORY, 137, True),
        (JobOutcome.NODE_FAILURE, None, True),
        (JobOutcome.CANCELLED, 143, False),
        (JobOutcome.PREEMPTED, None, False),
        (JobOutcome.TIME_LIMIT, None, False),
    ],
)
def test_a_job_that_ended_badly_is_one_alert_which_ends_with_its_series(fleet, outcome, code, fires):
    agent = fleet.agent()
    fleet.works(agent, range(1, 9))
    fleet.reports(
        agent, EventKind.JOB_ENDED, outcome=outcome, values={} if code is None else {"exit_code": float(code)}
    )
    fleet.goodbye(agent)
    fleet.minutes(14)
    job = fleet.status()
    assert (job["outcome"], job["exit_code"]) == (outcome, code)
    assert fleet.fired == ({"PerfdJobFailed": "firing"} if fires else {})
    fleet.minutes(2)
    assert fleet.fired == ({"PerfdJobFailed": "resolved"} if fires else {})
    assert fleet.of_job() == []
    assert fleet.status()["ended"]


def test_the_scheduler_says_more_than_the_exit_code_whichever_comes_first(fleet):
    with fleet.agent() as agent:
        fleet.works(agent, range(1, 3))
        for outcome in (JobOutcome.COMPLETED, JobOutcome.OUT_OF_MEMORY, JobOutcome.SIGNAL):
            fleet.reports(agent, EventKind.JOB_ENDED, outcome=outcome, values={"exit_code": 137.0})
        fleet.round()
    assert fleet.status()["outcome"] == "out_of_memory"


def test_an_alert_that_fires_is_resolved_by_the_end_of_its_job(fleet):
    with fleet.agent() as agent:
        fleet.works(agent, range(1, 9))
        fleet.minutes(16)
        assert fleet.fired["PerfdJobHangs"] == "firing"
        fleet.reports(agent, EventKind.JOB_ENDED, outcome=JobOutcome.CANCELLED)
        fleet.minutes(1)
        assert set(fleet.fired.values()) == {"resolved"}


def test_a_requeued_job_is_live_again_and_counts_from_its_first_step(fleet):
    agent = fleet.agent("a", "n0")
    fleet.works(agent, range(1, 9))
    fleet.reports(agent, EventKind.JOB_ENDED, outcome=JobOutcome.PREEMPTED)
    fleet.goodbye(agent)
    fleet.minutes(30)
    assert fleet.of_job() == []
    with fleet.agent("b", "n1") as agent:
        fleet.works(agent, range(1, 3))
        job = fleet.status()
        assert (job["ended"], job["outcome"], job["attempt"]) == (False, None, 2)
        assert job["steps"] == {"count": 2, "last": 2, "doubt": None}
        assert job["nodes"] == ["n1"]
        assert fleet.page()['perfd_step{perfd_job="llm"}'] == 2
    assert fleet.fired == {}


def test_a_job_that_goes_on_where_it_ended_is_a_new_attempt_without_lost_steps(fleet):
    agent = fleet.agent("a")
    fleet.works(agent, range(1, 9), ranks=False)
    fleet.reports(agent, EventKind.JOB_ENDED, outcome=JobOutcome.TIME_LIMIT)
    fleet.goodbye(agent)
    fleet.minutes(5)
    with fleet.agent("b") as agent:
        fleet.works(agent, range(9, 11), ranks=False)
    job = fleet.status()
    assert (job["ended"], job["attempt"], job["steps"]["count"]) == (False, 2, 10)


def test_a_job_that_goes_on_and_ends_again_has_the_headline_of_all_of_it(fleet):
    said = []
    for agent_id, numbers in (("a", range(1, 4)), ("b", range(4, 40))):
        agent = fleet.agent(agent_id)
        fleet.works(agent, numbers, ranks=False)
        assert not fleet.status()["ended"]
        fleet.reports(agent, EventKind.JOB_ENDED, outcome=JobOutcome.TIME_LIMIT)
        fleet.goodbye(agent)
        fleet.round()
        assert fleet.status()["ended"]
        said.append(fleet.status()["bottleneck"])
        (summary,) = fleet.running.summary("llm")
        assert tuple(said[-1]["evidence"]) == tuple(summary.bottleneck.evidence)
    assert said[0] != said[1]


def test_an_agent_that_takes_over_from_another_keeps_the_job_alive(fleet):
    agent = fleet.agent("a")
    fleet.works(agent, range(1, 5))
    fleet.goodbye(agent)
    with fleet.agent("b") as agent:
        agent.send(fleet.log(), sent_unix_ns=fleet.clock.unix_ns())
        fleet.minutes(3)
        assert not fleet.status()["ended"]


def test_a_job_whose_first_node_was_lost_counts_from_its_first_step_on_another(fleet):
    lost = fleet.agent("a", "n0")
    fleet.works(lost, range(1, 5))
    with fleet.agent("b", "n1") as other:
        other.send(RankPlacement(job="llm", rank=1), sent_unix_ns=fleet.clock.unix_ns())
        fleet.reports(other, EventKind.JOB_ENDED, outcome=JobOutcome.NODE_FAILURE)
    with fleet.agent("c", "n2") as agent:
        fleet.works(agent, range(1, 3))
        assert (fleet.status()["attempt"], fleet.status()["steps"]["last"]) == (2, 2)
    lost.__exit__()


def test_when_half_of_the_agents_vanish_those_are_down_and_the_job_goes_on(fleet):
    with contextlib.ExitStack() as agents:
        first, second, *lost = [agents.enter_context(fleet.agent(f"a{n}", f"n{n}")) for n in range(4)]
        for rank, agent in enumerate((second, *lost), 1):
            agent.send(place(rank, 0), fleet.log(), sent_unix_ns=fleet.clock.unix_ns())
        fleet.works(first, range(1, 5))
        for agent in lost:
            agent.__exit__()
        until(lambda: not any(map(fleet.connected, lost)))
        fleet.works(first, range(5, 31))
        up = {f"n{n}": fleet.page()[f'perfd_agent_up{{node="n{n}"}}'] for n in range(4)}
        job = fleet.status()
    assert up == {"n0": 1, "n1": 1, "n2": 0, "n3": 0}
    assert (job["ended"], job["attempt"], job["steps"]["last"]) == (False, 1, 30)
    assert set(fleet.fired) == {"PerfdAgentDown"}


@pytest.mark.parametrize("clean", [True, False])
def test_a_pod_that_is_replaced_counts_from_its_first_step(fleet, clean):
    agent = fleet.agent("a", "n0")
    fleet.works(agent, range(1, 9))
    if clean:
        fleet.goodbye(agent)
    else:
        agent.__exit__()
        until(lambda: not fleet.connected(agent))
        fleet.minutes(1.5)
    with fleet.agent("b", "n1") as agent:
        started_ns = fleet.clock.unix_ns()
        agent.send(
            RankPlacement(job="llm", rank=0, gpu=0, started_unix_ns=started_ns), sent_unix_ns=started_ns
        )
        fleet.reports(agent, EventKind.JOB_STARTED)
        fleet.works(agent, range(1, 3))
        assert (fleet.status()["attempt"], fleet.status()["steps"]["last"]) == (2, 2)


@pytest.mark.parametrize(("after_s", "ended", "attempt"), [(1.0, True, 1), (9.0, True, 1), (11.0, False, 2)])
def test_only_lines_long_after_the_end_take_it_back(fleet, after_s, ended, attempt):
    with fleet.agent("a") as one, fleet.agent("b", "n1") as two:
        fleet.works(one, range(1, 9), ranks=False)
        fleet.reports(one, EventKind.JOB_ENDED, outcome=JobOutcome.FAILED)
        # Of another agent, which had to wait for the network.
        late_s = fleet.now_s + after_s
        fleet.minutes(1)
        two.send(step(9, time_s=late_s), sent_unix_ns=fleet.clock.unix_ns())
        fleet.minutes(1)
    assert (fleet.status()["ended"], fleet.status()["attempt"]) == (ended, attempt)


def test_after_a_restart_of_the_aggregator_nobody_is_missed_who_said_goodbye(clock, tmp_path):
    history = HistoryConfig(path=str(tmp_path / "history.sqlite"))
    with aggregator(clock, rules=RULES, history=history) as running:
        fleet = Fleet(running, clock)
        agent = fleet.agent()
        fleet.works(agent, range(1, 9))
        fleet.goodbye(agent)
        fleet.minutes(14)
        assert fleet.status()["outcome"] == "unknown"
    with aggregator(clock, rules=RULES, history=history) as running:
        fleet = Fleet(running, clock)
        fleet.minutes(3)
        assert fleet.status()["outcome"] == "unknown"
        assert fleet.of_job() == []
    assert fleet.fired == {}


@pytest.mark.parametrize(
    ("code", "outcome"),
    [
        (0, JobOutcome.COMPLETED),
        (1, JobOutcome.FAILED),
        (128, JobOutcome.FAILED),
        (129, JobOutcome.SIGNAL),
        (130, JobOutcome.CANCELLED),
        (137, JobOutcome.SIGNAL),
        (143, JobOutcome.CANCELLED),
        (192, JobOutcome.SIGNAL),
        (193, JobOutcome.FAILED),
        (255, JobOutcome.FAILED),
    ],
)
def test_exit_codes_above_those_of_signals_are_the_programs_own(code: int, outcome: JobOutcome) -> None:
    assert JobOutcome.of_exit_code(code) is outcome

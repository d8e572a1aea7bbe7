"""Sequences, gaps, repeats, clocks and names of agents."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from perfd.aggregator.limits import Limits
from perfd.aggregator.state.agent_registry import AgentRegistry, AgentState
from perfd.aggregator.state.batch_repeats import BatchVerdict
from perfd.model import Hello


def hello(agent="a", node="n", first=1, sent=0):
    return Hello(agent_id=agent, node=node, perfd_version="1", sent_unix_ns=sent, first_sequence=first)


@given(st.lists(st.integers(1, 60), max_size=200))
def test_whatever_the_order_each_batch_counts_once_and_gaps_are_what_never_came(sequences):
    agent, limits = AgentState(agent_id="a", node="n"), Limits()
    taken, lost, late = [], 0, 0
    for sequence in sequences:
        verdict, missing = agent.take(sequence, limits)
        lost += missing
        late += verdict is BatchVerdict.LATE
        if verdict is not BatchVerdict.REPEAT:
            taken.append(sequence)
    assert sorted(taken) == sorted(set(sequences))
    assert lost - late == max(sequences, default=0) - len(set(sequences))


def test_a_huge_gap_is_counted_without_being_remembered_one_by_one():
    agent = AgentState(agent_id="a", node="n")
    assert agent.take(1 << 50, Limits(missing_sequences=8)) == (BatchVerdict.NEW, (1 << 50) - 1)
    assert len(agent.missing) == 8


def test_batches_that_a_new_agent_has_had_acknowledged_elsewhere_are_no_loss():
    agents = AgentRegistry(Limits())
    greeting = agents.greet(hello(first=1000), 1, 0.0, 0)
    assert greeting.lost == 0
    assert greeting.agent.take(1000, Limits()) == (BatchVerdict.NEW, 0)


def test_what_an_agent_can_no_longer_send_is_lost():
    agents = AgentRegistry(Limits())
    agents.greet(hello(), 1, 0.0, 0).agent.take(1, Limits())
    assert agents.greet(hello(first=5), 2, 0.0, 0).lost == 3


def test_two_live_agents_of_one_name_are_distinguished_and_that_is_said_once():
    agents = AgentRegistry(Limits())
    first = agents.greet(hello("aaaaaaaaaa"), 1, 0.0, 0)
    second = agents.greet(hello("bbbbbbbbbb"), 2, 0.0, 0)
    third = agents.greet(hello("cccccccccc"), 3, 0.0, 0)
    assert [one.agent.node for one in (first, second, third)] == ["n", "n~bbbbbbbb", "n~cccccccc"]
    assert [bool(one.warning) for one in (first, second, third)] == [False, True, False]


def test_an_agent_with_a_new_spool_takes_over_the_name_of_one_that_is_gone():
    agents = AgentRegistry(Limits())
    first = agents.greet(hello("a"), 1, 0.0, 0)
    agents.left(first.agent, 1)
    assert agents.greet(hello("b"), 2, 0.0, 0).agent.node == "n"


def test_the_end_of_an_old_stream_does_not_close_the_new_one():
    agents = AgentRegistry(Limits())
    agent = agents.greet(hello(), 1, 0.0, 0).agent
    agents.greet(hello(), 2, 0.0, 0)
    agents.left(agent, 1)
    assert agents.connected() == 1


def test_too_many_agents_are_refused_unless_an_old_one_can_go():
    agents = AgentRegistry(Limits(agents=1))
    first = agents.greet(hello("a"), 1, 0.0, 0)
    assert agents.greet(hello("b"), 2, 0.0, 0) is None
    agents.left(first.agent, 1)
    assert agents.greet(hello("b"), 2, 0.0, 0) is not None


def test_the_clock_offset_is_that_of_the_fastest_batch():
    agent = AgentState(agent_id="a", node="n")
    for delay_s in (0.5, 0.1, 0.9):
        agent.saw_clock(100_000_000_000, round((98 + delay_s) * 1e9))
    assert agent.clock_offset_s == 1.9


def test_a_clock_that_steps_is_measured_anew():
    agent = AgentState(agent_id="a", node="n")
    agent.saw_clock(0, 0)
    agent.saw_clock(-3600 * 10**9, 0)
    assert agent.clock_offset_s == -3600.0


def test_where_not_every_life_is_known_the_node_says_whose_spool_it_is() -> None:
    agents = AgentRegistry(Limits())

    def greeted(life: str, before: str, node: str = "n0", *, every_life: bool) -> bool:
        found = agents.greet(
            replace(hello(), node=node, spool_epoch=life, previous_epoch=before),
            1,
            0.0,
            0,
            principal=f"NATS {node}",
            every_life=every_life,
        )
        assert found is not None
        return found.agent is not None

    assert greeted("one", "", every_life=True)
    # Two restarts later.
    assert not greeted("three", "two", every_life=True)
    assert greeted("three", "two", every_life=False)
    assert not greeted("five", "four", node="n1", every_life=False)

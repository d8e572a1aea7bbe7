"""Who is away is known as long as that matters to somebody."""

from perfd.capture.policy.agent_presence import AgentPresence

START = 1_700_000_000.0


def test_the_first_word_of_an_agents_going_counts_until_it_is_back():
    away = AgentPresence()
    away.gone("a", START)
    away.gone("a", START + 5)
    assert away.away_s("a", START + 10) == 10
    away.back("a")
    assert away.away_s("a", START + 10) is None


def test_nodes_that_never_come_back_take_no_memory_unless_somebody_waits_for_them():
    away = AgentPresence()
    for number in range(1000):
        away.gone(f"spot-{number}", START + number)
    away.forget(START + 1000, awaited=())
    assert len(away) == 1000
    away.forget(START + 1000 + 3600, awaited=("spot-7",))
    assert len(away) == 1
    assert away.away_s("spot-7", START + 4600) == 4593

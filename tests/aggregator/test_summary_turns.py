import math
from collections.abc import Collection
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from perfd.aggregator.summary_turns import (
    GPUS_IN_EACH_ROUND,
    GPUS_PER_SECOND,
    LEAST_GPUS,
    WaitingJob,
    counted_gpus,
    gpus_per_second,
    may_rest,
    next_turn,
)

FLEET = {f"job{number}": 160 for number in range(50)}
"""1,000 nodes with 8 GPUs each."""


def rounds(
    gpus: dict[str, int],
    count: int,
    every_s: float = 1.0,
    pressing: Collection[str] = (),
    calm: Collection[str] = (),
) -> list[tuple[str, ...]]:
    """What each round makes where every job always has news; the news of some press from round 20 on."""
    looked_s = dict.fromkeys(gpus, -math.inf)
    credit, made = 0.0, []
    for number in range(count):
        now_s = number * every_s
        waiting = [
            WaitingJob(
                name=name,
                waited_s=now_s - looked_s[name],
                gpus=gpus[name],
                pressing=number >= 20 and name in pressing,
                calm=name in calm,
            )
            for name in gpus
        ]
        turn = next_turn(
            waiting,
            all_gpus=sum(gpus.values()),
            calm_gpus=sum(gpus[name] for name in calm),
            credit_gpus=credit,
            elapsed_s=every_s,
        )
        credit = turn.credit_gpus
        looked_s |= dict.fromkeys(turn.jobs, number * every_s)
        made.append(turn.jobs)
    return made


def test_a_fleet_that_fits_into_one_round_is_made_in_every_round() -> None:
    small = {"a": 1, "b": GPUS_IN_EACH_ROUND - 1}
    assert rounds(small, 3, every_s=0.1) == [("a", "b")] * 3
    assert rounds({**small, "c": 1}, 3) != [("a", "b", "c")] * 3


def test_each_node_of_a_fleet_of_any_size_costs_as_much() -> None:
    for nodes in (60, 100, 250, 500):
        made = rounds({f"job{number}": 160 for number in range(nodes // 20)}, 81)
        # Of 8 GPUs each; every second, as in fleets of up to 32 nodes, it would be 8.
        per_node_and_s = sum(map(len, made[1:])) * 160 / nodes / 80
        assert per_node_and_s <= max(2.0, GPUS_IN_EACH_ROUND / nodes) * 1.05


def test_new_jobs_do_not_wait_for_their_share_of_a_fleet_that_fits_into_a_second() -> None:
    made = rounds(dict.fromkeys((f"job{number}" for number in range(40)), LEAST_GPUS), 2)
    assert len(made[0]) == 40
    assert len(made[1]) < 40


def test_a_large_job_that_shows_a_change_is_made_in_every_round_until_there_are_more() -> None:
    alone = rounds({"large": GPUS_PER_SECOND}, 40, pressing={"large"})
    assert sum(map(bool, alone[:20])) <= 6
    assert all(alone[20:])


def test_the_jobs_of_a_large_fleet_are_spread_evenly_over_rounds() -> None:
    made = rounds(FLEET, 40)
    assert {len(jobs) for jobs in made} <= {6, 7}
    # Each is made again after as many rounds as the fleet has shares, and never twice in between.
    for name in FLEET:
        at = [number for number, jobs in enumerate(made) if name in jobs]
        assert {later - earlier for earlier, later in pairwise(at)} <= {7, 8}


def test_calm_jobs_come_every_30_seconds_and_another_one_every_4_as_before() -> None:
    fleet = {f"job{number}": 160 for number in range(12)}

    def longest_s(calm: Collection[str]) -> dict[str, int]:
        made = rounds(fleet, 120, calm=calm)
        at = {name: [number for number, jobs in enumerate(made) if name in jobs] for name in fleet}
        return {name: max(later - earlier for earlier, later in pairwise(at[name][1:])) for name in fleet}

    assert set(longest_s([]).values()) == {4}
    assert set(longest_s(fleet).values()) <= {30, 31}
    others = longest_s([name for name in fleet if name != "job5"])
    assert others["job5"] <= 4
    assert max(others.values()) <= 31


def test_a_calm_job_that_shows_a_change_is_made_in_the_next_round() -> None:
    fleet = {f"job{number}": 160 for number in range(12)}
    made = rounds(fleet, 60, pressing={"job7"}, calm=fleet)
    assert all("job7" in jobs for jobs in made[20:])


def test_slow_rounds_have_no_more_to_make_and_fast_ones_less() -> None:
    assert {len(jobs) for jobs in rounds(FLEET, 12, every_s=30.0)} <= {6, 7}
    assert sum(len(jobs) for jobs in rounds(FLEET, 80, every_s=0.1)) in range(50, 54)


def test_a_job_larger_than_a_share_leaves_the_next_rounds_to_others_and_comes_again() -> None:
    made = rounds({"large": 8 * GPUS_PER_SECOND, "small": 8}, 41)
    at = [number for number, jobs in enumerate(made) if "large" in jobs]
    assert at[:3] == [0, 8, 16]
    assert [number for number, jobs in enumerate(made) if "small" in jobs] == at


def test_a_job_of_16384_gpus_is_made_again_within_nine_seconds() -> None:
    made = rounds({"large": counted_gpus(16_384)}, 41)
    at = [number for number, jobs in enumerate(made) if jobs]
    assert {later - earlier for earlier, later in pairwise(at)} <= {8, 9}
    assert [counted_gpus(gpus) for gpus in (0, 8, 160, 1024)] == [LEAST_GPUS, 8, 160, 1024]


def test_new_jobs_fill_a_round_also_where_few_go_on() -> None:
    ended = [WaitingJob(name=str(at), waited_s=math.inf, gpus=LEAST_GPUS) for at in range(5_000)]
    turn = next_turn(ended, all_gpus=0, credit_gpus=0.0, elapsed_s=math.inf)
    assert len(turn.jobs) == GPUS_PER_SECOND / LEAST_GPUS


def test_a_new_job_comes_first() -> None:
    old = [WaitingJob(name=name, waited_s=5.0, gpus=gpus) for name, gpus in FLEET.items()]
    new = WaitingJob(name="new", waited_s=math.inf, gpus=160)
    assert next_turn([*old, new], all_gpus=8160, credit_gpus=0.0, elapsed_s=1.0).jobs[0] == "new"


def test_a_job_that_shows_a_change_is_made_in_the_next_round_and_all_others_have_their_turn() -> None:
    made = rounds(FLEET, 60, pressing={"job7"})
    assert all("job7" in jobs for jobs in made[20:])
    for name in FLEET:
        at = [number for number, jobs in enumerate(made) if name in jobs]
        assert max(later - earlier for earlier, later in pairwise(at)) <= 10


def test_where_all_jobs_show_a_change_none_waits_longer_than_without() -> None:
    made = rounds(FLEET, 60, pressing=FLEET)
    for name in FLEET:
        at = [number for number, jobs in enumerate(made) if name in jobs]
        assert {later - earlier for earlier, later in pairwise(at)} <= {7, 8}


@given(
    st.dictionaries(st.text(min_size=1), st.integers(0, 20_000), min_size=1, max_size=30),
    st.floats(0.05, 60.0),
    st.sets(st.text(min_size=1)),
)
def test_every_job_has_its_turn(gpus: dict[str, int], every_s: float, pressing: set[str]) -> None:
    share = gpus_per_second(sum(gpus.values())) * min(every_s, 1.0)
    cycle = math.ceil(sum(max(1, one) for one in gpus.values()) / share) + 1
    # What presses takes up to half of the share once more.
    pressing = {name for name in gpus if name in pressing or len(name) % 2}
    cycle *= 2
    made = rounds(gpus, 3 * cycle, every_s, pressing)
    assert {name for jobs in made[:cycle] for name in jobs} == set(gpus)
    assert {name for jobs in made[cycle:] for name in jobs} == set(gpus)


def test_a_round_rests_for_no_more_than_the_next_one_can_make_up_for() -> None:
    def rests(gpus: int, calm_gpus: int, **signs: bool) -> list[bool]:
        job = WaitingJob(name="a", waited_s=9.0, gpus=8, **{"calm": True, **signs})
        return [
            may_rest([job], all_gpus=gpus, calm_gpus=calm_gpus, turned_ago_s=float(seconds))
            for seconds in range(1, 7)
        ]

    assert rests(1_000, 1_000) == [True] * 4 + [False] * 2
    assert rests(8_000, 8_000) == [True] * 3 + [False] * 3
    assert rests(16_000, 16_000) == [True] + [False] * 5
    assert not any(rests(32_000, 32_000))
    assert not any(rests(256, 256))
    assert not any(rests(1_000, 1_000, calm=False) + rests(1_000, 1_000, pressing=True))

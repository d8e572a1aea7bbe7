"""The command that takes a node out of scheduling: for whom it is made, and when perfd runs it."""

import shlex
from dataclasses import replace

import pytest
from nodes.support import DAY_S, NOW_S, incident, ledger, standing

from perfd.nodes import (
    DONE,
    Drain,
    DrainLimits,
    Scheduler,
    drain_command,
    drainable,
    drains_due,
    reason_of,
    standings,
)

LIMITS = DrainLimits(scheduler=Scheduler.SLURM, nodes_per_day=2)


def suspects(*bad):
    known = ledger(*[f"n{number}" for number in range(40)])
    for node in bad:
        for number in range(4):
            known.note(incident(node, job=f"job{number}", lost_gpu_s=36_000.0))
    found = [one for one in standings(known, NOW_S) if one.suspect]
    assert [one.node for one in found] == list(bad)
    return found


def due(found, past=(), now_s=NOW_S + 60, limits=LIMITS):
    return [one.node for one in drains_due(found, past, limits, now_s)]


def test_the_command_to_copy_names_the_gpu_the_incidents_and_their_cost():
    (one,) = suspects("n3")
    command = drain_command("n3", Scheduler.SLURM, reason_of(one))
    assert shlex.join(command) == (
        "scontrol update NodeName=n3 State=DRAIN "
        "'Reason=perfd: GPU 3: straggler x4 in 4 jobs, 40.0 GPU-hours lost'"
    )
    assert shlex.join(drain_command("n3", Scheduler.KUBERNETES, "")) == (
        "kubectl taint nodes n3 perfd.io/suspect=true:NoSchedule --overwrite"
    )


@pytest.mark.parametrize(("lost_gpu_h", "shown_as"), [(0.04, ""), (0.06, ", 0.1 GPU-hours lost")])
def test_a_cost_that_would_be_printed_as_nothing_is_left_out(lost_gpu_h, shown_as):
    known = ledger(*[f"n{number}" for number in range(40)])
    for number in range(4):
        known.note(incident("n3", job=f"job{number}", lost_gpu_s=lost_gpu_h * 900))
    (one,) = (one for one in standings(known, NOW_S) if one.suspect)
    assert reason_of(one) == f"perfd: GPU 3: straggler x4 in 4 jobs{shown_as}"


@pytest.mark.parametrize(
    "name",
    [
        "",
        "ALL",
        "all",
        "Default",
        "-l",
        "--all",
        "n[1-9]",
        "n1,n2",
        "n1 n2",
        "a b",
        "n1;id",
        "$(id)",
        "n1\n",
        "x" * 300,
        "ü",
    ],
)
@pytest.mark.parametrize("scheduler", list(Scheduler))
def test_no_command_is_made_for_what_is_not_the_name_of_one_node(name, scheduler):
    assert not drainable(name)
    assert drain_command(name, scheduler, "because") is None


def test_a_gpu_that_calls_itself_something_odd_is_not_quoted():
    known = ledger(*[f"n{number}" for number in range(40)])
    known.observe("n3", {"3; reboot": 3600.0}, NOW_S)
    for number in range(4):
        known.note(incident("n3", job=f"job{number}", gpu="3; reboot"))
    assert "reboot" not in reason_of(standing(known, "n3"))


def test_no_more_nodes_than_the_limit_in_a_day_the_worst_first():
    found = suspects("n1", "n2", "n5")
    assert due(found) == ["n1", "n2"]
    past = drains_due(found, [], LIMITS, NOW_S + 60)
    done = [replace(one, outcome=DONE) for one in past]
    assert due(found, done, NOW_S + DAY_S) == []
    assert due(found, done, NOW_S + 61 + DAY_S) == ["n5"]


def test_a_node_that_an_operator_put_back_is_drained_only_for_something_new():
    (one,) = suspects("n3")
    (drain,) = drains_due([one], [], LIMITS, NOW_S + 60)
    done = [replace(drain, outcome=DONE)]
    assert due([one], done, NOW_S + 10 * DAY_S) == []
    later = incident("n3", job="later", at_s=NOW_S + 5 * DAY_S)
    assert due([replace(one, incidents=[later, *one.incidents])], done, NOW_S + 10 * DAY_S) == ["n3"]


def test_a_command_that_failed_counts_for_the_day_and_is_tried_again_after_it():
    found = suspects("n3")
    (drain,) = drains_due(found, [], LIMITS, NOW_S + 60)
    failed = [replace(drain, outcome="scontrol exited with 1")]
    assert due(found, failed, NOW_S + DAY_S / 2) == []
    assert due(found, failed, NOW_S + 2 * DAY_S) == ["n3"]
    full = [Drain(node=f"x{n}", command=(), reason="", unix_s=NOW_S) for n in range(2)]
    assert due(found, full) == []


def test_a_clock_that_was_set_back_makes_no_room():
    full = [Drain(node=f"x{n}", command=(), reason="", unix_s=NOW_S + 5 * DAY_S) for n in range(2)]
    assert due(suspects("n3"), full) == []


def test_who_is_no_suspect_is_never_drained():
    assert due([replace(one, jobs=1) for one in suspects("n3")]) == []

"""Looks at files are shared out so that many of them keep no new one waiting."""

from __future__ import annotations

from perfd_collectors.nccl.scan_budget import ScanBudget


def test_each_file_is_looked_at_once_a_window() -> None:
    budget = ScanBudget(10)
    assert budget.next(["a", "b"]) == ["a", "b"]
    assert budget.next(["a", "b", "c"]) == ["c"]
    budget.begin_window(["a", "b", "c"], skipped=["b"])
    assert budget.next(["a", "b", "c"]) == ["a", "c"]


def test_of_many_each_has_its_turn_before_one_has_its_second() -> None:
    budget, names = ScanBudget(2), ["a", "b", "c", "d", "e"]
    seen = []
    for _ in range(5):
        seen += budget.next(names)
        budget.begin_window(names, skipped=[])
    assert seen[:5] == names
    assert seen[5:7] == ["a", "b"]


def test_a_new_one_comes_before_those_that_wait_for_another_look() -> None:
    budget, names = ScanBudget(2), ["a", "b", "c", "d"]
    budget.next(names)
    budget.next(names)
    budget.begin_window(names, skipped=[])
    assert budget.next([*names, "z"]) == ["z", "a"]


def test_a_name_that_was_gone_is_new_again() -> None:
    budget = ScanBudget(1)
    budget.next(["a"])
    budget.begin_window([], skipped=[])
    budget.begin_window(["b"], skipped=[])
    assert budget.next(["a", "b"]) == ["a"]

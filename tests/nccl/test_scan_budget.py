"""Looks at files are shared out so that many of them keep no new one waiting."""

from __future__ import annotations

from perfd_collectors.nccl.scan_budget import ScanBudget


def test_each_file_is_looked_at_once_a_window() -> None:
    looks = ScanBudget(10)
    assert looks.next(["a", "b"]) == ["a", "b"]
    assert looks.next(["a", "b", "c"]) == ["c"]
    looks.begin_window(["a", "b", "c"], settled=["b"])
    assert looks.next(["a", "b", "c"]) == ["a", "c"]


def test_of_many_each_has_its_turn_before_one_has_its_second() -> None:
    looks, names = ScanBudget(2), ["a", "b", "c", "d", "e"]
    seen = []
    for _ in range(5):
        seen += looks.next(names)
        looks.begin_window(names, settled=[])
    assert seen[:5] == names
    assert seen[5:7] == ["a", "b"]


def test_a_new_one_comes_before_those_that_wait_for_another_look() -> None:
    looks, names = ScanBudget(2), ["a", "b", "c", "d"]
    looks.next(names)
    looks.next(names)
    looks.begin_window(names, settled=[])
    assert looks.next([*names, "z"]) == ["z", "a"]


def test_a_name_that_was_gone_is_new_again() -> None:
    looks = ScanBudget(1)
    looks.next(["a"])
    looks.begin_window([], settled=[])
    looks.begin_window(["b"], settled=[])
    assert looks.next(["a", "b"]) == ["a"]

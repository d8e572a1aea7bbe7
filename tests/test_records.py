"""`perfd.records.dataclass` makes what `dataclasses.dataclass` makes."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
import typing
from collections.abc import Callable
from dataclasses import FrozenInstanceError, field
from typing import Any, ClassVar

import pytest

from perfd import records

Make = Callable[..., Any]
Values = list[float]
WAYS = pytest.mark.parametrize("make", [dataclasses.dataclass, records.dataclass], ids=["standard", "perfd"])
"""What holds for one holds for the other."""


@records.dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """At the module's level: pickle finds it by its name."""

    name: str
    values: Values = field(default_factory=list)
    unit: str = "s"


def point(make: Make, **options: Any) -> Any:
    @make(slots=True, **options)
    class Point:
        x: float
        y: float = 1.0
        tags: list[str] = field(default_factory=list, compare=False, repr=False)

    return Point


@WAYS
@pytest.mark.parametrize("frozen", [True, False])
def test_arguments_are_fields_and_what_is_left_out_is_the_default(make: Make, frozen: bool) -> None:
    kind = point(make, frozen=frozen)
    first, second = kind(2.0), kind(2.0, 3.0, ["a"])
    assert (first.x, first.y, first.tags) == (2.0, 1.0, [])
    assert (second.x, second.y, second.tags) == (2.0, 3.0, ["a"])
    assert kind(2.0).tags is not first.tags
    assert kind.__match_args__ == ("x", "y", "tags")
    with pytest.raises(TypeError, match="x"):
        kind()
    with pytest.raises(TypeError, match="z"):
        kind(1.0, z=2)


@WAYS
def test_only_names_are_taken_where_only_names_may_be_given(make: Make) -> None:
    @make(slots=True, kw_only=True)
    class Named:
        a: int = 1
        b: int

    assert (Named(b=2).a, Named(b=2).b) == (1, 2)
    with pytest.raises(TypeError, match="positional"):
        Named(1, 2)  # type: ignore[misc]

    @make(slots=True)
    class Partly:
        a: int = field(kw_only=True)
        b: int

    assert (Partly(2, a=1).a, Partly(2, a=1).b) == (1, 2)


@WAYS
def test_fields_that_are_no_arguments_have_their_default(make: Make) -> None:
    @make(slots=True)
    class Counted:
        name: str
        seen: list[int] = field(default_factory=list, init=False)
        last: int = field(default=-1, init=False)
        first: int = field(init=False)

    assert (Counted("a").seen, Counted("a").last) == ([], -1)
    with pytest.raises(AttributeError, match="first"):
        _ = Counted("a").first
    assert list(inspect.signature(Counted).parameters) == ["name"]


@WAYS
def test_equal_records_are_of_one_class_and_have_one_hash(make: Make) -> None:
    kind, other = point(make, frozen=True), point(make, frozen=True)
    for _ in range(2):
        assert kind(1.0, tags=["a"]) == kind(1.0, tags=["b"])
        assert kind(1.0) != kind(1.0, 2.0)
        assert kind(1.0) != other(1.0)
        assert kind(1.0).__eq__(1.0) is NotImplemented
        assert hash(kind(1.0, tags=["a"])) == hash(kind(1.0, tags=["b"]))
        assert len({kind(1.0), kind(1.0), kind(2.0)}) == 2


def test_a_field_that_is_the_same_object_is_equal() -> None:
    """Even where it does not equal itself; the standard one, too, up to Python 3.12."""
    kind, nan = point(records.dataclass, frozen=True), float("nan")
    assert kind(nan) == kind(nan)


@WAYS
def test_what_can_change_has_no_hash(make: Make) -> None:
    kind = point(make)
    changed = kind(1.0)
    changed.x = 2.0
    assert changed == kind(2.0)
    with pytest.raises(TypeError, match="unhashable"):
        hash(changed)


@WAYS
def test_records_without_comparison_are_equal_to_themselves_alone(make: Make) -> None:
    kind = point(make, frozen=True, eq=False)
    one = kind(1.0)
    assert (one == kind(1.0), one == one, len({one, kind(1.0)})) == (False, True, 2)


@WAYS
def test_methods_of_the_class_stay(make: Make) -> None:
    @make(frozen=True, slots=True)
    class Own:  # noqa: PLW1641  (it is made)
        x: int

        def __eq__(self, other: object) -> bool:
            return True

        def __repr__(self) -> str:
            return "mine"

    assert (Own(1) == 2, repr(Own(1)), hash(Own(1)) == hash(Own(1))) == (True, "mine", True)

    @make(frozen=True, slots=True)
    class Hashed:
        x: int

        def __hash__(self) -> int:
            return 7

    assert hash(Hashed(1)) == 7


@WAYS
def test_what_is_frozen_does_not_change(make: Make) -> None:
    one = point(make, frozen=True)(1.0)
    with pytest.raises(FrozenInstanceError, match="cannot assign to field 'x'"):
        one.x = 2.0
    with pytest.raises(FrozenInstanceError, match="cannot delete field 'y'"):
        del one.y
    # The standard one looks for the class as it was without slots.
    with pytest.raises((FrozenInstanceError, TypeError)):
        one.other = 1
    assert one.x == 1.0


@WAYS
def test_it_shows_its_fields(make: Make) -> None:
    @make(slots=True)
    class Node:
        name: str
        next: Any = None

    assert repr(Node("a")).endswith("Node(name='a', next=None)")
    ring = Node("a")
    ring.next = ring
    assert repr(ring).endswith("Node(name='a', next=...)")
    assert "tags" not in repr(point(make)(1.0))


@WAYS
def test_a_class_below_has_the_fields_above_it(make: Make) -> None:
    base = point(make, frozen=True)

    @make(frozen=True, slots=True, kw_only=True)
    class Below(base):  # type: ignore[misc, valid-type]
        z: int

    one = Below(1.0, z=3)
    assert (one.x, one.y, one.z) == (1.0, 1.0, 3)
    assert one != base(1.0)
    with pytest.raises(FrozenInstanceError):
        one.x = 2.0


def test_the_standard_functions_know_it() -> None:
    one = Sample(name="a", values=[1.0])
    assert dataclasses.is_dataclass(one)
    assert dataclasses.asdict(one) == {"name": "a", "values": [1.0], "unit": "s"}
    assert dataclasses.replace(one, name="b") == Sample(name="b", values=[1.0])
    assert typing.get_type_hints(Sample.__init__) == {
        "name": str,
        "values": list[float],
        "unit": str,
        "return": type(None),
    }
    assert str(inspect.signature(Sample)) == (
        "(*, name: 'str', values: 'Values' = <factory>, unit: 'str' = 's') -> None"
    )


def test_copies_and_what_is_pickled_are_equal() -> None:
    one = Sample(name="a", values=[1.0])
    for other in (copy.copy(one), copy.deepcopy(one), pickle.loads(pickle.dumps(one))):
        assert other == one
        assert other.unit == "s"


def test_what_it_cannot_make_is_refused() -> None:
    with pytest.raises(TypeError, match=r"use dataclasses\.dataclass"):

        @records.dataclass(slots=True)
        class WithVariable:
            x: int
            known: ClassVar[int] = 1

    with pytest.raises(TypeError, match=r"use dataclasses\.dataclass"):

        @records.dataclass(slots=True)
        class Checked:
            x: int

            def __post_init__(self) -> None: ...

    with pytest.raises(TypeError, match="order"):
        records.dataclass(slots=True, order=True)

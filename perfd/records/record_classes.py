"""Makes classes of records in less time than `dataclasses` does.

That compiles six functions for each class, which for 400 classes is a quarter of an aggregator's start.
"""

from __future__ import annotations

import dataclasses
import reprlib
import sys
from collections.abc import Callable, Sequence
from dataclasses import MISSING, Field, FrozenInstanceError, fields
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass  # noqa: PLC0414, TID251  (what type checkers know)
else:

    def dataclass(
        cls: type | None = None,
        /,
        *,
        frozen: bool = False,
        slots: bool,
        kw_only: bool = False,
        eq: bool = True,
        repr: bool = True,  # noqa: A002  (its name there)
        weakref_slot: bool = False,
    ) -> Callable[..., Any] | type:
        """As `dataclasses.dataclass`, for most classes; what compares is compiled when it is first needed.

        Arguments that it does not take, class variables, `InitVar` and `__post_init__` are a TypeError.
        """
        layout = {"slots": slots, "kw_only": kw_only, "weakref_slot": weakref_slot}

        def made(plain: type) -> type:
            found = dataclasses.dataclass(plain, init=False, repr=False, eq=False, **layout)  # noqa: TID251
            if hasattr(found, "__post_init__") or len(fields(found)) != len(found.__dataclass_fields__):
                raise TypeError(f"{found.__qualname__}: use dataclasses.dataclass")
            _complete(found, fields(found), frozen=frozen, compared=eq, shown=repr)
            return found

        return made if cls is None else made(cls)


def _complete(cls: type, found: Sequence[Field[Any]], *, frozen: bool, compared: bool, shown: bool) -> None:
    own = cls.__dict__.copy()
    functions: dict[str, Callable[..., Any] | None] = {"__init__": _init(cls, found, frozen=frozen)}
    if compared:
        names = [field.name for field in found if field.compare]
        # Python has set `__hash__` to None where the class compares by itself.
        if own.get("__hash__") is None:
            functions["__hash__"] = _hash(cls, names) if frozen else None
        if "__eq__" not in own:
            functions["__eq__"] = _equal(cls, names)
    if shown and "__repr__" not in own:
        functions["__repr__"] = _representation([field.name for field in found if field.repr])
    if frozen:
        functions |= _frozen(cls, [field.name for field in found])
    for name, function in functions.items():
        _set_function(cls, name, function)


def _set_function(cls: type, name: str, function: Callable[..., Any] | None) -> None:
    if function is not None:
        function.__name__, function.__qualname__ = name, f"{cls.__qualname__}.{name}"
    setattr(cls, name, function)


def _compiled(cls: type, signature: str, body: str, **values: Any) -> Callable[..., Any]:  # noqa: ANN401
    """A function that knows these values; names in its annotations are those of the class's module."""
    text = f"def make({', '.join(values)}):\n def made({signature}):\n  {body}\n return made"
    made_here: dict[str, Any] = {}
    exec(text, sys.modules[cls.__module__].__dict__, made_here)  # noqa: S102  (of names of fields only)
    function: Callable[..., Any] = made_here["make"](**values)
    return function


def _init(cls: type, found: Sequence[Field[Any]], *, frozen: bool) -> Callable[..., Any]:
    values: dict[str, Any] = {"_set": object.__setattr__, "_absent": _ABSENT}
    arguments, body = ["self"], []
    given = [field for field in found if field.init]
    values |= {f"_default_{field.name}": field.default for field in found if field.default is not MISSING}
    for field in sorted(given, key=lambda field: bool(field.kw_only)):
        if field.kw_only and "*" not in arguments:
            arguments.append("*")
        default = ""
        if field.default is not MISSING:
            default = f"=_default_{field.name}"
        elif field.default_factory is not MISSING:
            default = "=_absent"
        arguments.append(field.name + default)
    for field in found:
        value = field.name
        if field.default_factory is not MISSING:
            values[f"_make_{field.name}"] = field.default_factory
            made = f"_make_{field.name}()"
            value = f"{made} if {field.name} is _absent else {field.name}" if field.init else made
        elif not field.init:
            if field.default is MISSING:
                continue
            value = f"_default_{field.name}"
        body.append(f"_set(self, {field.name!r}, {value})" if frozen else f"self.{field.name} = {value}")
    init = _compiled(cls, ", ".join(arguments), "; ".join(body) or "pass", **values)
    init.__annotations__ = {field.name: field.type for field in given} | {"return": None}
    return init


def _equal(cls: type, names: Sequence[str]) -> Callable[..., Any]:
    """Most classes are never compared: what compares is compiled when it is needed."""

    def equal(self: object, other: object) -> Any:  # noqa: ANN401  (bool or NotImplemented)
        mine, others = ("".join(f"{one}.{name}, " for name in names) for one in ("self", "other"))
        body = f"return ({mine}) == ({others}) if other.__class__ is self.__class__ else NotImplemented"
        function = _compiled(cls, "self, other", body)
        _set_function(cls, "__eq__", function)
        return function(self, other)

    return equal


def _hash(cls: type, names: Sequence[str]) -> Callable[..., Any]:
    def hashed(self: object) -> int:
        function = _compiled(cls, "self", f"return hash(({''.join(f'self.{name}, ' for name in names)}))")
        _set_function(cls, "__hash__", function)
        value: int = function(self)
        return value

    return hashed


class _Absent:
    """What an argument is that was not given, where each instance gets a new value."""

    def __repr__(self) -> str:
        return "<factory>"


_ABSENT = _Absent()


def _representation(names: Sequence[str]) -> Callable[..., Any]:
    @reprlib.recursive_repr()
    def representation(self: object) -> str:
        values = ", ".join(f"{name}={getattr(self, name)!r}" for name in names)
        return f"{self.__class__.__qualname__}({values})"

    return representation


def _frozen(cls: type, names: Sequence[str]) -> dict[str, Callable[..., Any] | None]:
    """What keeps the fields as they are, and lets copies be made and pickled."""

    def set_attribute(self: object, name: str, value: object) -> None:
        if type(self) is cls or name in names:
            raise FrozenInstanceError(f"cannot assign to field {name!r}")
        object.__setattr__(self, name, value)

    def delete_attribute(self: object, name: str) -> None:
        if type(self) is cls or name in names:
            raise FrozenInstanceError(f"cannot delete field {name!r}")
        object.__delattr__(self, name)

    def state(self: object) -> list[object]:
        return [getattr(self, name) for name in names]

    def set_state(self: object, values: Sequence[object]) -> None:
        for name, value in zip(names, values, strict=True):
            object.__setattr__(self, name, value)

    return {
        "__setattr__": set_attribute,
        "__delattr__": delete_attribute,
        "__getstate__": state,
        "__setstate__": set_state,
    }

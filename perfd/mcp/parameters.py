"""The parameters of tools: their JSON Schema, arguments checked against it, and pages of long lists."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Literal

from perfd.errors import PerfdError
from perfd.mcp.quantities import plain

_MOST_TEXT_CHARS = 1024
"""Of a text argument: four times the longest name that an aggregator takes."""
_SHOWN_CHARS = 60
"""How much of an invalid argument the answer repeats."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """One parameter of a tool."""

    name: str
    description: str
    kind: Literal["string", "integer", "number"] = "string"
    required: bool = False
    default: str | int | float | None = None
    minimum: int | None = None
    maximum: int | None = None
    choices: Sequence[str] = ()


def schema_of(parameters: Sequence[Parameter]) -> dict[str, Any]:
    """The JSON Schema of a tool's arguments."""
    return {
        "type": "object",
        "properties": {parameter.name: _property(parameter) for parameter in parameters},
        "required": [parameter.name for parameter in parameters if parameter.required],
        "additionalProperties": False,
    }


def checked(parameters: Sequence[Parameter], arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The value of each parameter, its default where it is missing; raises `PerfdError`."""
    names = [parameter.name for parameter in parameters]
    for name in arguments:
        if name not in names:
            alike = get_close_matches(name[:_MOST_TEXT_CHARS], names, n=1)
            hint = f"did you mean {alike[0]}?" if alike else f"there are: {', '.join(names) or 'none'}."
            raise PerfdError(f"There is no argument {plain(name, _SHOWN_CHARS)}; {hint}")
    return {parameter.name: _checked(parameter, arguments.get(parameter.name)) for parameter in parameters}


def _property(parameter: Parameter) -> dict[str, Any]:
    bounds = {"minimum": parameter.minimum, "maximum": parameter.maximum, "default": parameter.default}
    of_text = {"maxLength": _MOST_TEXT_CHARS} if parameter.kind == "string" else {}
    choices = {"enum": list(parameter.choices)} if parameter.choices else {}
    set_bounds = {key: value for key, value in bounds.items() if value is not None}
    return {
        "type": parameter.kind,
        "description": parameter.description,
        **set_bounds,
        **of_text,
        **choices,
    }


def _checked(parameter: Parameter, value: object) -> str | int | float | None:
    if value is None:
        if parameter.required:
            raise PerfdError(f"The argument {parameter.name} is missing: {parameter.description}")
        return parameter.default
    if parameter.kind == "string":
        return _text(parameter, value)
    kinds = (int,) if parameter.kind == "integer" else (int, float)
    if isinstance(value, bool) or not isinstance(value, kinds):
        words = "a whole number" if parameter.kind == "integer" else "a number"
        raise PerfdError(f"{parameter.name} must be {words}, not {plain(repr(value), _SHOWN_CHARS)}.")
    low, high = parameter.minimum, parameter.maximum
    if not (low is None or value >= low) or not (high is None or value <= high):
        bounds = " and ".join(
            words
            for bound, words in ((low, f"at least {low}"), (high, f"at most {high}"))
            if bound is not None
        )
        raise PerfdError(f"{parameter.name} must be {bounds}, not {plain(value, _SHOWN_CHARS)}.")
    return value


def _text(parameter: Parameter, value: object) -> str:
    if not isinstance(value, str) or not value or len(value) > _MOST_TEXT_CHARS:
        raise PerfdError(f"{parameter.name} must be a text of 1 to {_MOST_TEXT_CHARS} characters.")
    if parameter.choices and value not in parameter.choices:
        shown = plain(value, _SHOWN_CHARS)
        raise PerfdError(f"{parameter.name} must be one of {', '.join(parameter.choices)}, not {shown}.")
    try:
        value.encode()
    except UnicodeEncodeError as error:  # Half of a surrogate pair.
        raise PerfdError(f"{parameter.name} is not valid Unicode.") from error
    return value


OFFSET = Parameter(
    name="offset", kind="integer", description="Entries to leave out first.", default=0, minimum=0
)


def limit(default: int, maximum: int) -> Parameter:
    """The parameter `limit`, with a default and a maximum that its description names."""
    return Parameter(
        name="limit",
        kind="integer",
        description=f"Entries of the answer, at most {maximum}.",
        default=default,
        minimum=1,
        maximum=maximum,
    )


def page(entries: Sequence[Any], offset: int, most: int) -> tuple[Sequence[Any], dict[str, Any]]:
    """The entries of a page, and `{"offset", "limit", "total", "next_offset"}` (null: the last page)."""
    shown = entries[offset : offset + most]
    after = offset + len(shown)
    return shown, {
        "offset": offset,
        "limit": most,
        "total": len(entries),
        "next_offset": after if shown and after < len(entries) else None,
    }

"""How a configuration file is read: YAML, drop-ins over it, and errors that name the place."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import yaml

from perfd.config.unknown_keys import unknown_keys
from perfd.errors import ConfigError

T = TypeVar("T", bound=msgspec.Struct)

_WRONG_TYPE = re.compile(r"Expected `([^`]+)`, got `([^`]+)` - at `\$\.?([^`]*)`")
_WRONG_CHOICE = re.compile(r"Invalid enum value (.+) - at `\$\.?([^`]*)`")
_TYPES = {
    "str": "text",
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "array": "a list",
    "object": "a mapping of keys to values",
}


def parse(text: str, kind: type[T], *, name: str = "configuration") -> T:
    """Read YAML of one configuration type.

    Raises `ConfigError` with `name`, and every unknown key, or the first value or line that is wrong.
    """
    return _convert(_mapping(text, name), kind, name)


def load(path: Path, kind: type[T]) -> T:
    """Read a configuration file, and over it the drop-ins beside it.

    Drop-ins of `agent.yaml` are `agent.d/*.yaml`, in the order of their names: mappings are merged, anything
    else replaces what was there. Raises `ConfigError` as `parse` does, and when a file cannot be read.
    """
    merged = read_mapping(path)
    config = _convert(merged, kind, str(path))
    for drop_in in sorted(path.with_suffix(".d").glob("*.yaml")):
        merged = _over(merged, read_mapping(drop_in))
        # One at a time, so that an error names the file that brought it.
        config = _convert(merged, kind, str(drop_in))
    return config


def read_mapping(path: Path) -> dict[str, Any]:
    """What a configuration file itself holds, of whatever type; raises `ConfigError` as `load` does."""
    return _mapping(_read(path), str(path))


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path}: cannot read the configuration: {error.strerror or error}.") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: this is not YAML: it is not UTF-8 text.") from error


def _mapping(text: str, name: str) -> dict[str, Any]:
    try:
        data = yaml.safe_load(text)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"{name}:{mark.line + 1}:{mark.column + 1}" if mark else name
        raise ConfigError(f"{place}: this is not YAML: {error.problem or error.context}.") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"{name}: this is not YAML: {' '.join(str(error).split())}.") from error
    if data is None:
        return {}
    if not isinstance(data, dict):
        raise ConfigError(f"{name}: a configuration is a mapping of keys to values, such as `KEY: VALUE`.")
    return data


def _over(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Both mappings as one, in which `above` wins."""
    both = {
        key: _over(below[key], value)
        if isinstance(value, dict) and isinstance(below.get(key), dict)
        else value
        for key, value in above.items()
    }
    return {**below, **both}


def _convert(data: Mapping[str, Any], kind: type[T], name: str) -> T:
    try:
        return msgspec.convert(data, kind)
    except msgspec.ValidationError as error:
        unknown = "\n".join(f"{name}: {sentence}" for sentence in unknown_keys(data, kind))
        raise ConfigError(unknown or f"{name}: {_wrong_value(str(error))}") from error


def _wrong_value(said: str) -> str:
    """What msgspec says of a value, in words of YAML."""
    if match := _WRONG_TYPE.fullmatch(said):
        expected = " or ".join(_TYPES.get(one, one) for one in match[1].split(" | "))
        return f"`{match[3]}` must be {expected}, and is {_TYPES.get(match[2], match[2])}."
    if match := _WRONG_CHOICE.fullmatch(said):
        return f"`{match[2]}` cannot be {match[1]}; docs/configuration.md says what it can be."
    return said

"""Reads configuration files: YAML with drop-ins, and errors with line and column."""

from __future__ import annotations

import re
from collections.abc import Mapping
from copy import deepcopy
from functools import reduce
from operator import getitem
from pathlib import Path
from typing import Any, TypeVar, cast

import msgspec
import yaml

from perfd.config.unknown_keys import unknown_keys
from perfd.config.yaml_source import YamlSource, node_at
from perfd.errors import ConfigError

T = TypeVar("T", bound=msgspec.Struct)

_PLACE = re.compile(r" - at `\$\.?([^`]*)`$")
_PART = re.compile(r"\.(\w+)|\[(\d+|\.\.\.)\]")
_ANY_KEY = "..."
"""Written by msgspec in place of the key of a mapping."""
_WRONG_TYPE = re.compile(r"Expected `([^`]+)`, got `([^`]+)`")
_WRONG_CHOICE = re.compile(r"Invalid enum value (.+)")
_TYPES = {
    "str": "text",
    "int": "an integer",
    "float": "a number",
    "bool": "true or false",
    "array": "a list",
    "object": "a mapping of keys to values",
}


def parse(text: str, kind: type[T], *, name: str = "configuration") -> T:
    """Read YAML of one configuration type.

    Raises `ConfigError` with `name`, line and column of each unknown or repeated key, or of the first invalid
    value.
    """
    source = YamlSource(name, text)
    root, data = _read(source)
    return _convert(data, kind, source, root)


def load(path: Path, kind: type[T]) -> T:
    """Read a configuration file and its drop-ins.

    Drop-ins of `agent.yaml` are `agent.d/*.yaml`, in alphabetical order: mappings are merged, other values
    replaced. Raises `ConfigError` as `parse` does, and when a file cannot be read.
    """
    source = YamlSource.read(path)
    root, merged = _read(source)
    config = _convert(merged, kind, source, root)
    for drop_in in sorted(path.with_suffix(".d").glob("*.yaml")):
        source = YamlSource.read(drop_in)
        root, data = _read(source)
        merged = _over(merged, data)
        # One at a time, so that an error names its file.
        config = _convert(merged, kind, source, root)
    return config


def read_mapping(path: Path) -> dict[str, Any]:
    """The mapping in a configuration file, not validated; raises `ConfigError` as `load` does."""
    return _read(YamlSource.read(path))[1]


def _read(source: YamlSource) -> tuple[yaml.Node | None, dict[str, Any]]:
    root = source.root()
    data = None if root is None else source.data(root)
    if data is not None and not isinstance(data, dict):
        source.note(1, 1, "a configuration is a mapping of keys to values, such as `KEY: VALUE`")
    _raise_mistakes(source)
    return root, data or {}


def _raise_mistakes(source: YamlSource) -> None:
    if source.mistakes:
        raise ConfigError("\n".join(map(str, sorted(source.mistakes))))


def _over(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Both mappings merged; `above` takes precedence."""
    both = {
        key: _over(below[key], value)
        if isinstance(value, dict) and isinstance(below.get(key), dict)
        else value
        for key, value in above.items()
    }
    return {**below, **both}


def _convert(data: Mapping[str, Any], kind: type[T], source: YamlSource, root: yaml.Node | None) -> T:
    """`data` as `kind`; `root` is the YAML node of the newest part of it in `source`."""
    try:
        return msgspec.convert(data, kind)
    except msgspec.ValidationError as error:
        unknown = list(unknown_keys(data, kind))
        for key in unknown:
            source.refuse(node_at(root, key.path, of_key=True), key.sentence)
        if not unknown:
            path = _path(str(error), data, kind)
            source.refuse(node_at(root, path), _wrong_value(_PLACE.sub("", str(error)), path))
        _raise_mistakes(source)
        raise


def _path(message: str, data: Mapping[str, Any], kind: type[T]) -> tuple[str | int, ...]:
    """Keys and list positions of the value that msgspec refused."""
    place = _PLACE.search(message)
    path: tuple[str | int, ...] = ()
    for name, position in _PART.findall("." + place[1] if place else ""):
        if position == _ANY_KEY:
            path = (*path, _refused_key(message, data, kind, path))
        else:
            path = (*path, int(position) if position else name)
    return path


def _refused_key(message: str, data: Mapping[str, Any], kind: type[T], path: tuple[str | int, ...]) -> str:
    """The key of the mapping at `path` whose value alone is refused with the same message."""
    for key in reduce(getitem, path, cast("Any", data)):
        alone = deepcopy(data)
        mapping = reduce(getitem, path, cast("Any", alone))
        value = mapping[key]
        mapping.clear()
        mapping[key] = value
        try:
            msgspec.convert(alone, kind)
        except msgspec.ValidationError as error:
            if str(error) == message:
                return str(key)
    return _ANY_KEY


def _wrong_value(message: str, path: tuple[str | int, ...]) -> str:
    """A message of msgspec about the value at a path, in terms of YAML."""
    name = ".".join(map(str, path))
    if match := _WRONG_TYPE.fullmatch(message):
        expected = " or ".join(_TYPES.get(one, one) for one in match[1].split(" | "))
        return f"`{name}` must be {expected}, not {_TYPES.get(match[2], match[2])}."
    if match := _WRONG_CHOICE.fullmatch(message):
        return f"`{name}` cannot be {match[1]}; see docs/configuration.md."
    return f"`{name}`: {message}." if name else f"{message}."

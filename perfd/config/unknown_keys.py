"""Reports unknown keys of a configuration."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches

import msgspec
from msgspec import inspect


class Strict(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Refuses unknown keys, so that a misspelled one is an error."""


class TlsConfig(Strict, frozen=True):
    """Certificates in PEM files; with `ca` the peer must present one, too (mutual TLS)."""

    certificate: str | None = None
    key: str | None = None
    ca: str | None = None


@dataclass(frozen=True, slots=True)
class UnknownKey:
    """An unknown key with its path, and a sentence about it."""

    path: tuple[str, ...]
    sentence: str


def unknown_keys(data: object, kind: type) -> Iterator[UnknownKey]:
    """The keys of `data` that `kind` does not have."""
    return _below(data, inspect.type_info(kind), ())


def _below(data: object, declared: inspect.Type, path: tuple[str, ...]) -> Iterator[UnknownKey]:
    match declared:
        case inspect.StructType() if isinstance(data, Mapping):
            types = {field.encode_name: field.type for field in declared.fields}
            for key, value in data.items():
                if key in types:
                    yield from _below(value, types[key], (*path, key))
                elif declared.forbid_unknown_fields:
                    yield UnknownKey((*path, str(key)), _sentence(str(key), path, types))
        case inspect.DictType() if isinstance(data, Mapping):
            for key, value in data.items():
                yield from _below(value, declared.value_type, (*path, str(key)))
        case inspect.ListType() | inspect.VarTupleType() if isinstance(data, list):
            for number, value in enumerate(data):
                yield from _below(value, declared.item_type, (*path, str(number)))
        case inspect.UnionType():
            for one in declared.types:
                yield from _below(data, one, path)


def _sentence(key: str, path: tuple[str, ...], keys: Collection[str]) -> str:
    place = f" of `{'.'.join(path)}`" if path else ""
    alike = get_close_matches(key, keys, n=1)
    instead = f"did you mean `{alike[0]}`?" if alike else f"the keys are {', '.join(keys)}."
    return f"`{key}` is not a key{place}; {instead}"

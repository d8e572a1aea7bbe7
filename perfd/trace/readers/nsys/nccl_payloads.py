"""What NCCL notes on its NVTX ranges: communicator, size and peer of each call.

Nsight Systems exports them, if asked for with `--include-blobs=true`, as blobs with a head of 32 bytes
(little-endian): domain (4 bytes), 4 unused, schema (4), 4 unused, bytes of the payload (8), of all (8). Where
the fields of a payload are, the table of schemas says. (Sources: the schemas in NCCL's
`src/include/nvtx_payload_schemas.h`, and in the tables of a capture with NCCL 2.28.9; the head is what others
decoded 346,400 payloads by, of an export of Nsight Systems 2026.)
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

_HEAD_BYTES = 32
"""Before the payload of an exported event."""
_SCHEMA_AT = 8
"""Where the header has the number of the payload's schema."""
_COMMUNICATOR, _SIZE, _PEER, _RANKS = (
    "NCCL communicator ID",
    "Message size [bytes]",
    "Peer rank",
    "No. of ranks",
)
_WIDTHS = {_COMMUNICATOR: "<Q", _SIZE: "<Q", _PEER: "<i"}
_MAX_PAYLOAD_BYTES = 4096
"""NCCL's have 8 to 40; a field that begins later is damage."""

SchemaFields = Mapping[tuple[int, int], Mapping[str, int]]
"""By domain and schema: the fields that are read, with the offset of each in the payload."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NcclPayload:
    """The payload of one range."""

    communicator: int
    """The same number on all its ranks."""
    size_bytes: int | None = None
    """As NCCL counts it: of all-gather, reduce-scatter and all-to-all what one rank contributes to one."""
    peer: int | None = None
    """Of a send or receive: the other's number within the communicator."""


def schema_fields(rows: Iterable[tuple[Any, Any, Any, Any]]) -> SchemaFields:
    """From rows of domain, schema, name and offset of the fields of all schemas."""
    found: dict[tuple[int, int], dict[str, int]] = {}
    for domain, schema, name, offset in rows:
        at = 0 if offset is None else offset
        numbers = isinstance(domain, int) and isinstance(schema, int) and isinstance(at, int)
        if name in _WIDTHS and numbers and 0 <= at <= _MAX_PAYLOAD_BYTES:
            found.setdefault((domain, schema), {})[str(name)] = at
    return {key: fields for key, fields in found.items() if _COMMUNICATOR in fields}


def decoded(blob: object, domain: int, fields: SchemaFields) -> NcclPayload | None:
    """The payload of a range of a domain; None of one that is not NCCL's, or damaged."""
    if isinstance(blob, str):
        try:
            blob = bytes.fromhex(blob)
        except ValueError:
            return None
    if not isinstance(blob, bytes) or len(blob) < _HEAD_BYTES:
        return None
    (schema,) = struct.unpack_from("<I", blob, _SCHEMA_AT)
    payload = blob[_HEAD_BYTES:]
    values: dict[str, int] = {}
    for name, at in fields.get((domain, schema), {}).items():
        if at + struct.calcsize(_WIDTHS[name]) <= len(payload):
            (values[name],) = struct.unpack_from(_WIDTHS[name], payload, at)
    if _COMMUNICATOR not in values:
        return None
    size = values.get(_SIZE)
    return NcclPayload(
        communicator=values[_COMMUNICATOR],
        size_bytes=size if size is not None and size < 2**62 else None,
        peer=values.get(_PEER),
    )

"""Records as the answer of a process without rights, which its agent does not trust."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from perfd.errors import SandboxError, WireError
from perfd.model import Batch, Record
from perfd.wire.convert import check, decode_agent_message, encode_message


def encode_records(records: Iterable[Record]) -> bytes:
    """In the sandbox: the answer with those records that the wire can carry."""
    return encode_message(Batch(sequence=1, sent_unix_ns=0, records=[one for one in records if _fits(one)]))


def decode_records(answer: bytes) -> Sequence[Record]:
    """In the agent; raises `SandboxError` for an answer that has no records."""
    batch = decode_agent_message(answer)
    if not isinstance(batch, Batch):
        raise SandboxError("The process that reads users' files without rights answered with something else.")
    return batch.records


def _fits(record: Record) -> bool:
    try:
        check(record)
    except WireError:
        return False
    return True

"""Records as the answer of a process without rights, which its agent does not trust."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from perfd.errors import SandboxError
from perfd.model import Batch, Record
from perfd.wire import agent_messages, convert


def encode_records(records: Iterable[Record]) -> bytes:
    """In the sandbox: the answer with those records that the wire can carry."""
    encoded, _ = convert.encode_records(records)
    return convert.encode_message(
        Batch(sequence=1, sent_unix_ns=0, records=()), [data for _, data in encoded]
    )


def decode_records(answer: bytes) -> Sequence[Record]:
    """In the agent; raises `SandboxError` for an answer that has no records."""
    batch = agent_messages.decode_agent_message(answer)
    if not isinstance(batch, Batch):
        raise SandboxError("The process that reads users' files without rights answered with something else.")
    return batch.records

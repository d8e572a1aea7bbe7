"""Reads a dump: in this process, or of an agent of root in one without rights."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from perfd.collector import Settings
from perfd.errors import SandboxError
from perfd.model import Batch, CollectiveProgress
from perfd.safe_pickle import MAX_BYTES
from perfd.sandbox import Sandbox
from perfd.wire.convert import decode_agent_message, encode_message
from perfd_collectors.nccl.flight_recorder.dump import FlightRecorderError, read_dump


class _Dump(msgspec.Struct, frozen=True, kw_only=True):
    job: str
    rank: int
    read_unix_ns: int
    data: bytes


class DumpReader:
    """Reads the dumps of one look; its sandbox starts with the first one, and ends at `close`."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._sandbox: Sandbox | None = None

    def read(
        self, path: Path, rank: int, *, job: str | None = None, folder: int | None = None
    ) -> Sequence[CollectiveProgress]:
        """The progress in a dump, whose path may begin at the descriptor of a folder.

        Raises `OSError` or `FlightRecorderError`.
        """
        # The folder may be world-writable: a link could point to another user's file.
        flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        descriptor = os.open(path, flags, dir_fd=folder)
        with open(descriptor, "rb") as file:  # noqa: PTH123  (a descriptor has no path)
            data = file.read(MAX_BYTES + 1)
        job = self._settings.job if job is None else job
        dump = _Dump(job=job, rank=rank, read_unix_ns=self._settings.clock.unix_ns(), data=data)
        return self._in_sandbox(dump) if self._settings.sandboxed else _progress(dump)

    def close(self) -> None:
        """End the sandbox; legal twice."""
        if self._sandbox is not None:
            self._sandbox.close()
            self._sandbox = None

    def _in_sandbox(self, dump: _Dump) -> Sequence[CollectiveProgress]:
        try:
            if self._sandbox is None:
                self._sandbox = Sandbox(f"{__name__}:reader")
            batch = decode_agent_message(self._sandbox.ask(msgspec.msgpack.encode(dump)))
        except SandboxError as error:
            self.close()
            raise FlightRecorderError(str(error)) from error
        records = batch.records if isinstance(batch, Batch) else ()
        return [record for record in records if isinstance(record, CollectiveProgress)]


def _progress(dump: _Dump) -> Sequence[CollectiveProgress]:
    return read_dump(dump.data, job=dump.job, rank=dump.rank, read_unix_ns=dump.read_unix_ns)


def _answer(message: bytes) -> bytes:
    dump = msgspec.msgpack.decode(message, type=_Dump)
    return encode_message(Batch(sequence=1, sent_unix_ns=0, records=_progress(dump)))


def reader() -> Callable[[bytes], bytes]:
    """What runs in the sandbox."""
    return _answer

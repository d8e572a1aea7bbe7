"""The meaning of XIDs, from `xids.yaml`."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from importlib.resources import files

import msgspec

from perfd.config import parse

UNKNOWN_XID = 999
"""NVML's event data when the driver does not report the number."""


class Cause(StrEnum):
    """The most frequent cause of an XID."""

    APPLICATION = "application"
    HARDWARE = "hardware"
    DRIVER = "driver"
    INFORMATION = "information"


class Xid(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One row of the table."""

    xid: int
    cause: Cause
    meaning: str


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The file as a whole."""

    xids: list[Xid]


def load_xids() -> Mapping[int, Xid]:
    """The shipped table, by number."""
    text = files("perfd_collectors.nvml_events").joinpath("xids.yaml").read_text(encoding="utf-8")
    return {row.xid: row for row in parse(text, _File, name="xids.yaml").xids}


def describe(number: int, table: Mapping[int, Xid]) -> str:
    """A sentence with the meaning, the likely cause, and what to do."""
    row = table.get(number)
    if number == UNKNOWN_XID:
        return "An XID without a number from NVML: look for `NVRM: Xid` in the kernel log."
    if row is None:
        return f"XID {number}: see https://docs.nvidia.com/deploy/xid-errors/ for its meaning."
    return f"XID {number}: {row.meaning}; {_ADVICE[row.cause]}."


_ADVICE = {
    Cause.APPLICATION: "usually an error of the job, so check its log first",
    Cause.HARDWARE: "possibly a hardware failure, so drain the node and check it",
    Cause.DRIVER: "possibly a driver error, so check the kernel log and reset the GPU if it persists",
    Cause.INFORMATION: "informational, not a failure",
}

"""What only the sentences of Nsight Compute's own rules have on the details page: pipes, stalls, accesses."""

from __future__ import annotations

import re
from collections.abc import Mapping

_PIPE = re.compile(
    r"^([A-Za-z0-9 /()]{2,40}?) is the highest-utilized pipeline \((\d{1,3}(?:\.\d+)?)%\) based on elapsed"
)
_PIPES: Mapping[str, str] = {
    "tensor": "tensor_ratio", "fma": "fma_ratio", "alu": "alu_ratio", "fp64": "fp64_ratio",
    "fp16": "fp16_ratio",
}  # fmt: skip
_STALL = re.compile(r"spends (\d{1,9}(?:\.\d+)?) cycles being stalled (.{0,200})")
_REASONS = tuple(
    (reason, re.compile(words, re.IGNORECASE))
    for reason, words in (
        ("gmma", r"WARPGROUP"),
        ("long scoreboard", r"scoreboard dependency on a L1TEX"),
        ("short scoreboard", r"scoreboard dependency on an? MIO"),
        ("mio throttle", r"MIO \(memory input/output\) instruction queue"),
        ("lg throttle", r"L1 instruction queue for local and global"),
        ("tex throttle", r"texture operations"),
        ("barrier", r"sibling warps at a CTA barrier"),
        ("membar", r"memory barrier"),
        ("math pipe throttle", r"execution pipe to be available"),
        ("wait", r"fixed latency"),
        ("drain", r"memory instructions to complete"),
        ("no instruction", r"instruction (?:fetch|cache)|not having the next instruction"),
        ("imc miss", r"immediate constant"),
        ("branch resolving", r"branch target"),
        ("dispatch stall", r"dispatch"),
        ("not selected", r"selected"),
        ("sleeping", r"sleep"),
    )
)
_SECTOR = re.compile(r"for global loads from L1TEX.{0,80}?only (\d{1,2}(?:\.\d+)?) of the 32 bytes")
_EXCESSIVE = re.compile(r"uncoalesced global accesses.{0,80}?excessive sectors \((\d{1,3})% of")
_CONFLICTS = re.compile(r"results? in (\d{1,15}) bank conflicts,.{0,60}?of the overall (\d{1,15}) wavefronts")


def read_rule(text: str) -> dict[str, float | tuple[str, float]]:
    """Fields of `KernelMetrics` that a sentence has; `stall` is a reason and its cycles. Empty for others."""
    found: dict[str, float | tuple[str, float]] = {}
    if pipe := _PIPE.search(text):
        field = _PIPES.get(pipe[1].lower().split(" ")[0])
        if field:
            found[field] = float(pipe[2]) / 100
    if stall := _STALL.search(text):
        reason = next((name for name, words in _REASONS if words.search(stall[2])), None)
        if reason:
            found["stall"] = (reason, float(stall[1]))
    if sector := _SECTOR.search(text):
        found["bytes_used_per_sector"] = float(sector[1])
    if excessive := _EXCESSIVE.search(text):
        found["excessive_sector_ratio"] = float(excessive[1]) / 100
    if conflicts := _CONFLICTS.search(text):
        found["bank_conflicts"], found["shared_wavefronts"] = float(conflicts[1]), float(conflicts[2])
    return found

"""Megatron's other lines: memory, stragglers, model size, checkpoints."""

from __future__ import annotations

import re
from collections.abc import Sequence

from perfd.model import MemoryReport
from perfd_collectors.training_log.printed_fields import fields, number, positive

_MIB = 1024.0 * 1024.0
"""Bytes per MiB."""
_GB = 1e9
"""Bytes per GB."""

# The next report on the same line terminates this one.
_MEMORY = re.compile(
    r"\[Rank (\d{1,15})\] \(after (?:(\d{1,15}) iterations|[a-z][\w ]*)\) memory \((MB|GB)\) \|"
    r"(.*?)(?=\[Rank \d|$)",
    re.ASCII,
)
_MEMORY_FIELDS = {
    "allocated": "allocated_bytes",
    "max allocated": "max_allocated_bytes",
    "reserved": "reserved_bytes",
    "max reserved": "max_reserved_bytes",
    "total device memory used": "device_used_bytes",
    "mem-allocated-bytes": "allocated_bytes",
    "mem-max-allocated-bytes": "max_allocated_bytes",
    "mem-reserved-bytes": "reserved_bytes",
    "mem-max-reserved-bytes": "max_reserved_bytes",
}


def memory_reports(job: str, text: str) -> Sequence[MemoryReport]:
    """All memory reports of a complete line. Megatron's MB are MiB; Bridge's `-bytes` keys are in GB."""
    reports = []
    for match in _MEMORY.finditer(text):
        unit = _MIB if match[3] == "MB" else _GB
        values: dict[str, float] = {}
        for key, value in fields(match[4], complete=True):
            name, size = _MEMORY_FIELDS.get(key), number(value)
            if name is not None and size is not None and size >= 0:
                values.setdefault(name, size * unit)
        if values:
            reports.append(
                MemoryReport(job=job, step=int(match[2]) if match[2] else None, rank=int(match[1]), **values)
            )
    return reports


_STRAGGLER = re.compile(
    r"\b(Mn|Mx)(Rtt|Pwr|Tmp|Utl|Clk|DRtt|Etpt)/Rnk: ([\d.]+)(ms|W|C|%|MHz|TF)/(\d{1,15})(?= \||\s*$)",
    re.ASCII,
)
_STRAGGLER_NAMES = {
    "Rtt": ("forward", "s", -3),
    "DRtt": ("data", "s", -3),
    "Pwr": ("power", "w", -3),
    "Tmp": ("temperature", "celsius", 0),
    "Utl": ("utilization", "ratio", -2),
    "Clk": ("sm_clock", "hz", 6),
    "Etpt": ("throughput", "flops_per_s", 12),
}
_EXTREMES = re.compile(r"\^\^\^\^ (?:Bottom|Top) +\d+ Ranks with \w+ +Etpt\(TF\): (.*)$", re.ASCII)
_OF_RANK = re.compile(r"([\d.]+)/(\d{1,15})", re.ASCII)
_MAX_POWER_W = 5000.0
"""Above the power of any GPU: larger values are milliwatts."""


def straggler_values(text: str) -> dict[str, float]:
    """Values of a straggler line (`--log-straggler`), or of its list of the fastest and slowest ranks.

    Power is printed in milliwatts but labeled W (torch.cuda.power_draw), so implausible values are
    taken as milliwatts. Round-trip times cover only the traced forward operations.
    """
    values: dict[str, float] = {}
    for extreme, name, figure, _, rank in _STRAGGLER.findall(text):
        printed = number(figure)
        if printed is None:
            continue
        what, unit, power = _STRAGGLER_NAMES[name]
        if name == "Pwr" and printed <= _MAX_POWER_W:
            power = 0
        edge = "min" if extreme == "Mn" else "max"
        values[f"{what}_{edge}_{unit}"] = number(figure, power) or 0.0
        values[f"{what}_{edge}_rank"] = float(rank)
    listed = _EXTREMES.search(text)
    # Each pair ends with a comma, including the last one.
    for pair in listed[1].split(",")[:-1] if listed else ():
        match = _OF_RANK.fullmatch(pair.strip())
        value = number(match[1], 12) if match else None
        if match is not None and value is not None:
            values[f"throughput_rank_{match[2]}_flops_per_s"] = value
    return values


_VALIDATION = re.compile(r"validation loss at (?:iteration (\d{1,15})(?![^ |])|(?!iteration))", re.ASCII)


def validation(text: str) -> tuple[int | None, dict[str, float]] | None:
    """Iteration and losses of a validation line; None when it is not one."""
    match = _VALIDATION.search(text)
    if match is None:
        return None
    _, bar, losses = text[match.end() :].partition("|")
    if not bar:
        return None
    values = {
        key: found for key, value in fields(losses, complete=False) if (found := number(value)) is not None
    }
    return (int(match[1]) if match[1] else None), values


_SAVED = re.compile(r"successfully saved checkpoint (?:from|at) iteration +(\d{1,15})\b(?= )", re.ASCII)
_SAVING = re.compile(r"saving checkpoint at iteration +(\d{1,15})\b(?= )", re.ASCII)
_LOADED = re.compile(
    r"successfully loaded checkpoint from (?:(?!successfully).)* at iteration (\d{1,15})\s*$", re.ASCII
)


def saved_checkpoint(text: str) -> int | None:
    """Iteration of a saved checkpoint; None for other lines."""
    match = _SAVED.search(text)
    return int(match[1]) if match else None


def begun_checkpoint(text: str) -> int | None:
    """Iteration of a checkpoint that is being saved; None for other lines."""
    match = _SAVING.search(text)
    return int(match[1]) if match else None


def loaded_checkpoint(text: str) -> int | None:
    """Iteration from which a job resumes; None for other lines."""
    match = _LOADED.search(text)
    return int(match[1]) if match else None


_PADDED = re.compile(r"padded vocab \(size: \d+\) with \d+ dummy tokens? \(new size: (\d{1,15})\)", re.ASCII)
_TOTAL = re.compile(r"Total number of parameters in billions: +([\d.]+)\s*$", re.ASCII)
_OF_SHARD = re.compile(
    r"number of parameters on \([^()]*\) model parallel rank \(([\d, ]+)\): (\d{1,15})\s*$", re.ASCII
)
_CORE = re.compile(r"Megatron-Core version \.* *(\w[\w.+-]*)\s*$", re.ASCII)
_THEORY = re.compile(
    r"Theoretical memory footprints: weight and optimizer=([\d.]+) MB, "
    r"activation=([\d.]+) MB, total=([\d.]+) MB",
    re.ASCII,
)


def padded_vocab(text: str) -> int | None:
    """Padded vocabulary size, which is not in the arguments dump; None for other lines."""
    match = _PADDED.search(text)
    return int(match[1]) if match else None


def total_parameters(text: str) -> float | None:
    """Parameters of the whole model, printed in billions with two decimals; None for other lines."""
    match = _TOTAL.search(text)
    return positive(match[1], 9) if match else None


def shard_parameters(text: str) -> tuple[tuple[int, ...], int] | None:
    """A model-parallel rank and its number of parameters; None for other lines."""
    match = _OF_SHARD.search(text)
    return (
        (tuple(int(part) for part in match[1].split(",") if part.strip()), int(match[2])) if match else None
    )


def core_version(text: str) -> str | None:
    """Megatron-Core's version, printed at the start by recent versions; None for other lines."""
    match = _CORE.search(text)
    return match[1] if match else None


def theoretical_memory(text: str) -> dict[str, str]:
    """Theoretical memory of the most loaded rank, as printed; empty for other lines."""
    match = _THEORY.search(text)
    names = ("weight_and_optimizer", "activation", "total")
    return {f"theoretical_{name}_memory_mb": match[n + 1] for n, name in enumerate(names)} if match else {}


_SIZES = {
    "world_size": "using world size",
    "dp": "data-parallel size",
    "cp": "(?<!hierarchical )context-parallel size",
    "tp": "(?<!encoder-)tensor-model-parallel size",
    "pp": "(?<!encoder-)pipeline-model-parallel size",
}


def world(text: str) -> dict[str, int]:
    """Sizes of the line `using world size: ...`; empty for other lines."""
    if "using world size:" not in text:
        return {}
    # Core 0.6 lacks a comma; core 0.12 merges "sizes: None" with the next name.
    ends = r": (\d{1,15})(?=[, ]|\s*$)"
    found = {name: re.search(what + ends, text, re.ASCII) for name, what in _SIZES.items()}
    return {name: int(match[1]) for name, match in found.items() if match}

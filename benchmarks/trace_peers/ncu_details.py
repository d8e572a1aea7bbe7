"""What Nsight Compute's details page says of each kernel, beside what perfd reads of it and shows."""

from __future__ import annotations

import csv
import re
from dataclasses import fields
from pathlib import Path

from perfd.trace.roofline import read_ncu

_SPEED_OF_LIGHT, _MEMORY = "GPU Speed Of Light Throughput", "Memory Workload Analysis"
_COMPUTE, _LAUNCH, _OCCUPANCY = "Compute Workload Analysis", "Launch Statistics", "Occupancy"
_METRICS = {
    "compute_ratio": (_SPEED_OF_LIGHT, "Compute (SM) Throughput"),
    "memory_ratio": (_SPEED_OF_LIGHT, "Memory Throughput"),
    "dram_ratio": (_SPEED_OF_LIGHT, "DRAM Throughput"),
    "l2_ratio": (_SPEED_OF_LIGHT, "L2 Cache Throughput"),
    "l1_ratio": (_SPEED_OF_LIGHT, "L1/TEX Cache Throughput"),
    "duration_s": (_SPEED_OF_LIGHT, "Duration"),
    "sm_clock_hz": (_SPEED_OF_LIGHT, "SM Frequency"),
    "dram_clock_hz": (_SPEED_OF_LIGHT, "DRAM Frequency"),
    "issue_ratio": (_COMPUTE, "Issue Slots Busy"),
    "ipc": (_COMPUTE, "Executed Ipc Active"),
    "dram_bytes_per_s": (_MEMORY, "Memory Throughput"),
    "l1_hit_ratio": (_MEMORY, "L1/TEX Hit Rate"),
    "l2_hit_ratio": (_MEMORY, "L2 Hit Rate"),
    "spill_requests": (_MEMORY, "Local Memory Spilling Requests"),
    "active_threads_per_warp": ("Warp State Statistics", "Avg. Active Threads Per Warp"),
    "grid_blocks": (_LAUNCH, "Grid Size"),
    "block_threads": (_LAUNCH, "Block Size"),
    "registers_per_thread": (_LAUNCH, "Registers Per Thread"),
    "sm_count": (_LAUNCH, "# SMs"),
    "waves": (_LAUNCH, "Waves Per SM"),
    "occupancy_ratio": (_OCCUPANCY, "Achieved Occupancy"),
    "theoretical_occupancy_ratio": (_OCCUPANCY, "Theoretical Occupancy"),
    "limit_registers_blocks": (_OCCUPANCY, "Block Limit Registers"),
    "limit_shared_blocks": (_OCCUPANCY, "Block Limit Shared Mem"),
    "limit_warps_blocks": (_OCCUPANCY, "Block Limit Warps"),
    "limit_slots_blocks": (_OCCUPANCY, "Block Limit SM"),
    "limit_barriers_blocks": (_OCCUPANCY, "Block Limit Barriers"),
}
"""Sections and names of the page by what perfd calls it."""
_UNITS = {"%": 0.01, "Ghz": 1e9, "Mhz": 1e6, "ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0,
          "Tbyte/s": 1e12, "Gbyte/s": 1e9, "Mbyte/s": 1e6, "Kbyte/s": 1e3}  # fmt: skip
_SENTENCES = {
    "bank_conflicts": (re.compile(r"results? in (\d+) bank conflicts"), 1.0),
    "shared_wavefronts": (re.compile(r"of the overall (\d+) wavefronts"), 1.0),
    "bytes_used_per_sector": (re.compile(r"loads from L1TEX.*? only ([\d.]+) of the 32 bytes"), 1.0),
    "excessive_sector_ratio": (re.compile(r"excessive sectors \((\d+)% of"), 0.01),
}
"""Numbers that the page has in the sentences of its rules only."""
_PIPE = re.compile(r"(\w+) is the highest-utilized pipeline \(([\d.]+)%\)")
_STALL = re.compile(r"spends ([\d.]+) cycles being stalled")


def beside_details(path: Path) -> tuple[dict[str, float], dict[str, float]]:
    """Every number of the kernels that perfd shows, and what the page itself says, in base units.

    `path` is a details page in CSV and in English. perfd's evidence also rates a cache by no more than the
    whole memory system, whose share is of all cycles and not of those in which the cache works.
    """
    theirs: dict[str, float] = {}
    stalls: dict[str, list[float]] = {}
    named = {metric: field for field, metric in _METRICS.items()}
    with path.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(line for line in file if not line.startswith("==")):
            kernel, rule = row["ID"], row["Rule Description"] or ""
            field = named.get((row["Section Name"], row["Metric Name"]))
            if field is not None:
                number = float(row["Metric Value"].replace(",", "")) * _UNITS.get(row["Metric Unit"], 1.0)
                theirs[f"{kernel} {field}"] = number
            for field, (sentence, scale) in _SENTENCES.items():
                if found := sentence.search(rule):
                    theirs.setdefault(f"{kernel} {field}", float(found[1]) * scale)
            if found := _PIPE.match(rule):
                theirs[f"{kernel} {found[1].lower()}_ratio"] = float(found[2]) / 100
            if found := _STALL.search(rule):
                stalls.setdefault(kernel, []).append(float(found[1]))
    for kernel, cycles in stalls.items():
        for at, value in enumerate(sorted(cycles, reverse=True)):
            theirs[f"{kernel} stall {at}"] = value
    ours: dict[str, float] = {}
    for kernel, read in enumerate(read_ncu(path)):
        numbers = {
            name: getattr(read, name)
            for name in (field.name for field in fields(read))
            if name != "dram_bytes"
        }
        numbers["dram_bytes_per_s"] = read.dram_bytes_per_s
        numbers |= {f"stall {at}": cycles for at, (_, cycles) in enumerate(read.stalls)}
        ours |= {f"{kernel} {name}": n for name, n in numbers.items() if isinstance(n, (int, float))}
    return ours, theirs

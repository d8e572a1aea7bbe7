"""What Nsight Compute measured of one kernel, and what limits it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from perfd.trace.roofline.roofline_model import AT_LIMIT_RATIO, LATENCY_RATIO, RooflineVerdict

_COMPUTE, _MEMORY = "compute", "memory"
_LEVELS = ("dram", "l2", "l1")


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelMetrics:
    """One profiled kernel. None for what the report does not have; ratios are of a unit's peak."""

    name: str
    duration_s: float | None = None
    sm_clock_hz: float | None = None
    dram_clock_hz: float | None = None
    compute_ratio: float | None = None
    """Of the busiest unit of the SM."""
    memory_ratio: float | None = None
    """Of the busiest part of the memory system, whichever it is."""
    dram_ratio: float | None = None
    l2_ratio: float | None = None
    l1_ratio: float | None = None
    """L1, texture and shared memory."""
    tensor_ratio: float | None = None
    fma_ratio: float | None = None
    """The pipe of FP32 products outside the tensor cores."""
    alu_ratio: float | None = None
    fp64_ratio: float | None = None
    fp16_ratio: float | None = None
    issue_ratio: float | None = None
    """Cycles in which a scheduler issued an instruction."""
    occupancy_ratio: float | None = None
    theoretical_occupancy_ratio: float | None = None
    limit_registers_blocks: float | None = None
    """Blocks that an SM has room for, by what each needs; so the next four."""
    limit_shared_blocks: float | None = None
    limit_warps_blocks: float | None = None
    limit_slots_blocks: float | None = None
    limit_barriers_blocks: float | None = None
    registers_per_thread: float | None = None
    spill_requests: float | None = None
    grid_blocks: float | None = None
    block_threads: float | None = None
    sm_count: float | None = None
    waves: float | None = None
    """How many times the grid fills the GPU."""
    l1_hit_ratio: float | None = None
    l2_hit_ratio: float | None = None
    dram_bytes: float | None = None
    l2_bytes: float | None = None
    l1_bytes: float | None = None
    flops: float | None = None
    """Counted by instruction or by the operations of tensor cores."""
    bank_conflicts: float | None = None
    shared_wavefronts: float | None = None
    load_sectors_per_request: float | None = None
    bytes_used_per_sector: float | None = None
    """Of 32 that each sector of a global load moves."""
    excessive_sector_ratio: float | None = None
    active_threads_per_warp: float | None = None
    ipc: float | None = None
    stalls: Sequence[tuple[str, float]] = ()
    """Reasons, in warps stalled for each issued instruction, the worst first."""
    stall_ratios: Sequence[tuple[str, float]] = ()
    """The same as shares of the time of active warps, from metrics of that form."""

    @property
    def units(self) -> dict[str, float]:
        """How busy each unit is, the busiest first: `tensor`, `compute`, `dram`, `l2`, `l1` or `memory`.

        Caches are rated over the cycles in which they work; no more than `memory_ratio`, which is over all.
        """
        found: dict[str, float] = {}
        if self.compute_ratio is not None:
            tensor = self.tensor_ratio is not None and self.tensor_ratio >= 0.9 * self.compute_ratio > 0
            found["tensor" if tensor else _COMPUTE] = self.compute_ratio
        elif self.tensor_ratio is not None:
            found["tensor"] = self.tensor_ratio
        for level in _LEVELS:
            ratio: float | None = getattr(self, f"{level}_ratio")
            if ratio is not None:
                found[level] = ratio if self.memory_ratio is None else min(ratio, self.memory_ratio)
        if self.memory_ratio is not None and self.memory_ratio > max(
            (found.get(level, 0.0) for level in _LEVELS), default=0.0
        ):
            found[_MEMORY] = self.memory_ratio
        return dict(sorted(found.items(), key=lambda item: -item[1]))

    @property
    def verdict(self) -> RooflineVerdict | None:
        """What limits it; None unless a unit of compute and one of memory are known.

        Compute that is at its limit counts before memory: a matrix product on tensor cores keeps shared
        memory as busy, and neither more bandwidth nor fewer bytes would help it.
        """
        units = self.units
        arithmetic = [ratio for unit, ratio in units.items() if unit in {"tensor", _COMPUTE}]
        memory = [ratio for unit, ratio in units.items() if unit not in {"tensor", _COMPUTE}]
        if not arithmetic or not memory:
            return None
        if max(*arithmetic, *memory) < LATENCY_RATIO:
            return RooflineVerdict.LATENCY
        if max(arithmetic) >= min(AT_LIMIT_RATIO, max(memory)):
            return RooflineVerdict.COMPUTE
        return RooflineVerdict.MEMORY

    @property
    def limits(self) -> tuple[str, ...]:
        """Units at their limit, those of the verdict first, else the busiest; none if latency limits it."""
        verdict, units = self.verdict, self.units
        if verdict is None or verdict is RooflineVerdict.LATENCY:
            return ()
        full = [unit for unit, ratio in units.items() if ratio >= AT_LIMIT_RATIO] or [next(iter(units))]
        computing = verdict is RooflineVerdict.COMPUTE
        return tuple(sorted(full, key=lambda unit: (unit in {"tensor", _COMPUTE}) is not computing))

    @property
    def at_limit(self) -> bool | None:
        """Whether the unit that limits it has nothing left to give."""
        return None if self.verdict is None else max(self.units.values()) >= AT_LIMIT_RATIO

    @property
    def occupancy_limiters(self) -> tuple[str, ...]:
        """What keeps more blocks off an SM, where that is less than its warps."""
        limits = {
            "registers": self.limit_registers_blocks,
            "shared memory": self.limit_shared_blocks,
            "block slots": self.limit_slots_blocks,
            "barriers": self.limit_barriers_blocks,
            "warps": self.limit_warps_blocks,
        }
        known = {what: blocks for what, blocks in limits.items() if blocks is not None}
        least = min(known.values(), default=None)
        return tuple(what for what, blocks in known.items() if blocks == least)

    @property
    def roofline_points(self) -> dict[str, tuple[float, float]]:
        """By level of memory, FLOP per byte and FLOP/s, where operations and bytes were counted."""
        if not self.flops or not self.duration_s:
            return {}
        moved = {level: getattr(self, f"{level}_bytes") for level in _LEVELS}
        speed = self.flops / self.duration_s
        return {level: (self.flops / count, speed) for level, count in moved.items() if count}

    @property
    def dram_bytes_per_s(self) -> float | None:
        """What it moved to and from the GPU's memory."""
        return self.dram_bytes / self.duration_s if self.dram_bytes and self.duration_s else None

"""What limits a kernel that Nsight Compute measured, the evidence for it, and what to do."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from perfd.formatting import bandwidth, percent
from perfd.trace.model.kernel_classes import kernel_class
from perfd.trace.roofline.kernel_metrics import KernelMetrics
from perfd.trace.roofline.roofline_model import RooflineVerdict

UNIT_NAMES = {
    "tensor": "tensor pipes", "compute": "SM pipes", "dram": "DRAM", "l2": "L2", "l1": "L1/shared memory",
    "memory": "memory system",
}  # fmt: skip
_LITTLE_OCCUPANCY_RATIO = 0.30
"""Of the warps that an SM can hold, below which latency may show. Chosen."""
_STALL_SHARE_RATIO = 0.30
"""Nsight Compute's rule CPIStall looks at reasons from this share of the time between two instructions."""
_LITTLE_STALL, _MUCH_STALL = 0.1, 2.0
"""Warps stalled per issued instruction: less is nothing, and more than so many is worth a change."""
_FEW_BLOCKS_RATIO = 0.80
"""Blocks per SM below which a grid leaves SMs without work. Chosen."""
_TAIL_RATIO = 0.10
"""Of the kernel's time in which its last wave leaves SMs idle."""
_MOST_WAVES = 10
"""After more of them the last one is a small part of the time."""
_IDEAL_SECTORS = 4.0
"""32 threads that read 4 bytes each, side by side: a request of 4 sectors of 32 bytes."""
_SCATTERED_SECTORS = 16.0
"""Threads that read 16 bytes each need as many; more is scattered."""
_USED_BYTES = 24.0
"""Of the 32 of a sector, on average: with fewer a quarter of the traffic or more is wasted."""
_EXCESSIVE_RATIO = 0.20
"""Of all sectors, those that a coalesced access would not need. Chosen."""
_CONFLICT_RATIO = 0.10
"""Of the wavefronts of shared memory, those that bank conflicts add. Chosen."""
_LITTLE_HIT_RATIO = 0.10
"""Of the L2 cache: with fewer hits a kernel does not reuse its data. Chosen."""
_FULL_WARP_THREADS = 24.0
"""Of 32 threads that are active in an instruction: with fewer a quarter of the work or more is lost."""
_STALL_ADVICE = {
    "long scoreboard": "warps wait for global memory: load earlier (cp.async, TMA, more stages), raise"
    " occupancy, or improve reuse",
    "short scoreboard": "warps wait for shared memory or special functions: fewer or wider shared accesses",
    "barrier": "warps wait at block barriers: balance the work between them, or use smaller blocks",
    "gmma": "warps wait for tensor cores to finish: normal for a product near its peak",
    "math pipe throttle": "the pipe is full: use another pipe (tensor cores), or a lower precision",
    "mio throttle": "the queue to shared memory is full: fewer or wider shared accesses",
    "lg throttle": "too many memory instructions: vectorize loads and stores",
    "tex throttle": "the texture queue is full: vectorize loads, or spread them",
    "wait": "fixed latencies between dependent instructions: more independent work per thread, or more warps",
    "no instruction": "instructions are fetched late: shorter code, less unrolling",
    "membar": "warps wait for memory fences: fewer or narrower fences",
    "drain": "warps wait for their last stores: fewer or wider stores at the end",
    "branch resolving": "warps wait for branches: fewer, or predication",
    "imc miss": "constants miss their cache: fewer different constants per warp",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Reason:
    """One observation about a kernel, and what to do; no advice where nothing has to change."""

    evidence: str
    advice: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelJudgment:
    """What limits a kernel."""

    summary: str
    """`Compute bound: tensor pipes and L1/shared memory at the limit`."""
    reasons: tuple[Reason, ...]

    @property
    def advice(self) -> str:
        """All advice, in sentences."""
        return " ".join(f"{text[:1].upper()}{text[1:]}." for text in self.advices)

    @property
    def advices(self) -> list[str]:
        """Each once."""
        return list(dict.fromkeys(reason.advice for reason in self.reasons if reason.advice))


def judge(kernel: KernelMetrics) -> KernelJudgment:
    """What limits a kernel, by what the report has of it."""
    reasons = (
        *_by_verdict(kernel),
        *_precision(kernel),
        *_occupancy(kernel),
        *_stalls(kernel),
        *_grid(kernel),
        *_accesses(kernel),
    )
    return KernelJudgment(summary=_summary(kernel), reasons=reasons)


def _summary(kernel: KernelMetrics) -> str:
    if kernel.verdict is None:
        return "What limits it is unknown: the report lacks the throughput of compute or of memory"
    words = kernel.verdict.value.replace("_", " ").capitalize()
    if not kernel.limits:
        return words
    names = " and ".join(UNIT_NAMES[unit] for unit in kernel.limits)
    return f"{words}: {names} {'at the limit' if kernel.at_limit else 'busiest, not at the limit'}"


def _by_verdict(kernel: KernelMetrics) -> Iterator[Reason]:
    shares = ", ".join(f"{UNIT_NAMES[unit]} {percent(ratio)}" for unit, ratio in kernel.units.items())
    if not shares:
        return
    moved = kernel.dram_bytes_per_s
    rate = f"; DRAM moves {bandwidth(moved)}" if moved else ""
    yield Reason(f"Of their peaks: {shares}{rate}.", _advice(kernel))


def _advice(kernel: KernelMetrics) -> str:
    if kernel.verdict is RooflineVerdict.MEMORY:
        if {"dram", "memory"} & set(kernel.limits):
            return "move fewer bytes: fuse it with its neighbors, use narrower types, tile for reuse"
        if "l2" in kernel.limits:
            return "tile for reuse in shared memory: L2 is the limit, DRAM is not"
        return "use shared memory less (registers, wider accesses): L1 is the limit, DRAM is not"
    if kernel.verdict is RooflineVerdict.COMPUTE and kernel.at_limit:
        if "tensor" in kernel.limits:
            return (
                "only a lower precision or less arithmetic makes it faster: tensor cores are at their limit"
            )
        return "do less arithmetic, or move it to another pipe: the SM's pipes are at their limit"
    return ""


def _precision(kernel: KernelMetrics) -> Iterator[Reason]:
    pipes = {
        "FMA (FP32)": kernel.fma_ratio, "ALU": kernel.alu_ratio, "FP64": kernel.fp64_ratio,
        "FP16": kernel.fp16_ratio, "tensor": kernel.tensor_ratio,
    }  # fmt: skip
    known = {name: ratio for name, ratio in pipes.items() if ratio is not None and ratio >= 0.005}
    if known:
        busiest = sorted(known.items(), key=lambda item: -item[1])
        yield Reason(f"Pipes: {', '.join(f'{name} {percent(ratio)}' for name, ratio in busiest)}.")
    if kernel.issue_ratio is not None:
        yield Reason(f"Schedulers issue an instruction in {percent(kernel.issue_ratio)} of the cycles.")
    product = kernel_class(kernel.name) == "matmul"
    without = kernel.tensor_ratio is not None and kernel.tensor_ratio < 0.01
    by_name = any(word in kernel.name.lower() for word in ("simt", "sgemm", "dgemm"))
    if product and (without or (by_name and kernel.tensor_ratio is None)):
        yield Reason(
            "A matrix product that does not use tensor cores.",
            "run it on tensor cores: bf16 or fp16, or TF32 for FP32"
            " (`torch.backends.cuda.matmul.allow_tf32`, `jax_default_matmul_precision`)",
        )


def _occupancy(kernel: KernelMetrics) -> Iterator[Reason]:
    if kernel.spill_requests:
        yield Reason(
            f"Registers spill to local memory: {kernel.spill_requests:,.0f} requests.",
            "use fewer registers per thread (smaller tiles), or allow more (`__launch_bounds__`)",
        )
    achieved, possible = kernel.occupancy_ratio, kernel.theoretical_occupancy_ratio
    if achieved is None:
        return
    words = f"Occupancy {percent(achieved)}"
    if possible is not None:
        words += f" of {percent(possible)} that its resources allow"
    limiters = [name for name in kernel.occupancy_limiters if name not in {"warps", "block slots"}]
    if limiters:
        words += f", limited by {' and '.join(limiters)}"
        if "registers" in limiters and kernel.registers_per_thread:
            words += f" ({kernel.registers_per_thread:.0f} registers per thread)"
    little = achieved < _LITTLE_OCCUPANCY_RATIO and kernel.at_limit is False
    advice = ""
    if little and limiters:
        advice = f"raise occupancy: less {' and '.join(limiters)} per block"
    yield Reason(f"{words}.", advice)


def _stalls(kernel: KernelMetrics) -> Iterator[Reason]:
    if kernel.stall_ratios:
        reason, ratio = kernel.stall_ratios[0]
        words = ", ".join(f"{name} {percent(share)}" for name, share in kernel.stall_ratios[:3])
        wanted = ratio >= _STALL_SHARE_RATIO and not _busy(kernel)
        yield Reason(
            f"Warps stall for: {words} of their time.", _STALL_ADVICE.get(reason, "") if wanted else ""
        )
    elif kernel.stalls:
        reason, cycles = kernel.stalls[0]
        if cycles < _LITTLE_STALL:
            return
        total = sum(value for _, value in kernel.stalls) + 1.0
        words = ", ".join(f"{name} {value:.1f}" for name, value in kernel.stalls[:3])
        wanted = cycles / total >= _STALL_SHARE_RATIO and cycles >= _MUCH_STALL and not _busy(kernel)
        yield Reason(
            f"Warps wait for: {words} (warps stalled per issued instruction).",
            _STALL_ADVICE.get(reason, "") if wanted else "",
        )


def _busy(kernel: KernelMetrics) -> bool:
    """Whether stalls are what they have to be: the unit that they wait for is at its limit."""
    return kernel.at_limit is True


def _grid(kernel: KernelMetrics) -> Iterator[Reason]:
    blocks, sms, waves = kernel.grid_blocks, kernel.sm_count, kernel.waves
    if blocks is not None and sms is not None and blocks < sms:
        yield Reason(
            f"Its {blocks:.0f} blocks do not fill {sms:.0f} SMs.",
            "launch more blocks (larger shapes, split-K), or run it beside other kernels or in a CUDA graph"
            if blocks < _FEW_BLOCKS_RATIO * sms
            else "",
        )
    elif waves is not None and 1.0 < waves <= _MOST_WAVES:
        lost = 1.0 - waves / math.ceil(waves)
        if lost >= _TAIL_RATIO:
            yield Reason(
                f"Its grid fills the GPU {waves:.2f} times: its last wave leaves {percent(lost)} idle.",
                "choose tiles so that the grid is a whole number of waves, or a persistent kernel",
            )


def _accesses(kernel: KernelMetrics) -> Iterator[Reason]:
    hits = {"L1": kernel.l1_hit_ratio, "L2": kernel.l2_hit_ratio}
    known = {name: ratio for name, ratio in hits.items() if ratio is not None and 0 <= ratio <= 1}
    if known:
        reuse = kernel.l2_hit_ratio is not None and kernel.l2_hit_ratio < _LITTLE_HIT_RATIO
        yield Reason(
            f"Hit rates: {', '.join(f'{name} {percent(ratio)}' for name, ratio in known.items())}.",
            "data is read once: only fewer bytes help" if reuse and "dram" in kernel.limits else "",
        )
    conflicts, wavefronts = kernel.bank_conflicts, kernel.shared_wavefronts
    if conflicts and wavefronts and conflicts / wavefronts >= _CONFLICT_RATIO:
        yield Reason(
            f"Bank conflicts: {conflicts:,.0f} of {wavefronts:,.0f} wavefronts of shared memory"
            f" ({percent(conflicts / wavefronts)}).",
            "pad or swizzle the layout in shared memory"
            if not _busy(kernel) or "l1" in kernel.limits
            else "",
        )
    sectors, used, excess = (
        kernel.load_sectors_per_request,
        kernel.bytes_used_per_sector,
        kernel.excessive_sector_ratio,
    )
    coalesce = "let neighboring threads read neighboring addresses (coalesced, vectorized loads)"
    if sectors is not None and sectors > _IDEAL_SECTORS:
        yield Reason(
            f"A global load takes {sectors:.1f} sectors per request (4 for neighboring words).",
            coalesce if sectors > _SCATTERED_SECTORS else "",
        )
    # Kernels that load in other ways (TMA, asynchronous copies) have no such sectors: 0 bytes per sector.
    if used and used < _USED_BYTES:
        yield Reason(f"Global loads use {used:.1f} of each 32 bytes that they move.", coalesce)
    elif excess is not None and excess >= _EXCESSIVE_RATIO:
        yield Reason(f"{percent(excess)} of the sectors of global accesses are excessive.", coalesce)
    threads = kernel.active_threads_per_warp
    if threads is not None and threads < _FULL_WARP_THREADS:
        yield Reason(
            f"{threads:.1f} of 32 threads of a warp are active: its branches diverge.",
            "let threads of a warp take the same branch",
        )

"""How Nsight Compute's metrics are called, in its raw names of any version and on the details page.

A raw name is a counter and what is made of it: `sm__throughput.avg.pct_of_peak_sustained_elapsed`. Versions
and users differ in the second part, so that a counter is looked up with each of several. (Source: "Metrics
Structure" and "Metrics Reference" in Nsight Compute's documentation.)
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from perfd.trace.roofline.kernel_metrics import KernelMetrics

SECTOR_BYTES = 32.0
"""What caches of NVIDIA's GPUs transfer at a time."""
_PEAKS = tuple(
    f".{of}.pct_of_peak_sustained_{over}"
    for over in ("elapsed", "active")
    for of in ("avg", "sum", "max", "min")
)
_ACTIVE_PEAKS = tuple(sorted(_PEAKS, key=lambda form: "_elapsed" in form))
_SUM, _RATIO, _PERCENT = (".sum", ".avg", ""), (".ratio", ".avg", ""), (".pct", ".avg", "")
_Forms = tuple[tuple[str, ...], tuple[str, ...]]
_RAW: Mapping[str, _Forms] = {
    "compute_ratio": (("sm__throughput", "breakdown:sm__throughput"), _PEAKS),
    "memory_ratio": (("gpu__compute_memory_throughput", "gpu__compute_memory_access_throughput"), _PEAKS),
    "dram_ratio": (("gpu__dram_throughput", "dram__throughput"), _PEAKS),
    "l2_ratio": (("lts__throughput",), _PEAKS),
    "l1_ratio": (("l1tex__throughput",), _PEAKS),
    "tensor_ratio": (
        (
            "sm__pipe_tensor_cycles_active",
            "sm__pipe_tensor_op_gmma_cycles_active",
            "sm__pipe_tensor_op_hmma_cycles_active",
            "sm__pipe_tensor_op_imma_cycles_active",
            "sm__pipe_tensor_op_dmma_cycles_active",
            "sm__pipe_tensor_fp16_cycles_active",
            "sm__pipe_tensor_int_cycles_active",
            "sm__inst_executed_pipe_tensor",
            "sm__inst_executed_pipe_tensor_op_gmma",
            "sm__inst_executed_pipe_tensor_op_hmma",
            "sm__inst_executed_pipe_tensor_op_imma",
        ),
        _ACTIVE_PEAKS,
    ),
    "fma_ratio": (
        ("sm__pipe_fma_cycles_active", "sm__inst_executed_pipe_fma", "sm__pipe_fma_type_fp32_cycles_active"),
        _PEAKS,
    ),
    "alu_ratio": (("sm__pipe_alu_cycles_active", "sm__inst_executed_pipe_alu"), _PEAKS),
    "fp64_ratio": (("sm__pipe_fp64_cycles_active", "sm__inst_executed_pipe_fp64"), _PEAKS),
    "fp16_ratio": (("sm__pipe_fp16_cycles_active", "sm__inst_executed_pipe_fp16"), _PEAKS),
    "issue_ratio": (
        ("sm__inst_issued", "smsp__issue_active", "sm__issue_active", "smsp__inst_issued"),
        _PEAKS,
    ),
    "occupancy_ratio": (("sm__warps_active", "smsp__warps_active"), _PEAKS),
    "theoretical_occupancy_ratio": (
        ("sm__maximum_warps_per_active_cycle_pct", "sm__maximum_warps_avg_per_active_cycle.pct"),
        ("",),
    ),
    "duration_s": (("gpu__time_duration", "gpu__time_duration_measured_user", "gpc__time_duration"), _SUM),
    "sm_clock_hz": (
        ("smsp__cycles_elapsed", "gpc__cycles_elapsed", "sm__cycles_elapsed"),
        (".avg.per_second", ".max.per_second"),
    ),
    "dram_clock_hz": (("dram__cycles_elapsed",), (".avg.per_second", ".max.per_second")),
    "waves": (("launch__waves_per_multiprocessor",), ("",)),
    "grid_blocks": (("launch__grid_size",), ("",)),
    "block_threads": (("launch__block_size",), ("",)),
    "sm_count": (("launch__sm_count", "device__attribute_multiprocessor_count"), ("",)),
    "registers_per_thread": (("launch__registers_per_thread",), ("",)),
    "limit_registers_blocks": (("launch__occupancy_limit_registers",), ("",)),
    "limit_shared_blocks": (("launch__occupancy_limit_shared_mem",), ("",)),
    "limit_warps_blocks": (("launch__occupancy_limit_warps",), ("",)),
    "limit_slots_blocks": (("launch__occupancy_limit_blocks",), ("",)),
    "limit_barriers_blocks": (("launch__occupancy_limit_barriers",), ("",)),
    "spill_requests": (
        (
            "derived__local_spilling_requests",
            "sass__inst_executed_register_spilling",
            "smsp__inst_executed_op_local",
        ),
        _SUM,
    ),
    "l1_hit_ratio": (("l1tex__t_sector_hit_rate",), _PERCENT),
    "l2_hit_ratio": (("lts__t_sector_hit_rate",), _PERCENT),
    "dram_bytes": (("dram__bytes",), _SUM),
    "l2_bytes": (("lts__t_bytes",), _SUM),
    "l1_bytes": (("l1tex__t_bytes",), _SUM),
    "bank_conflicts": (
        ("l1tex__data_bank_conflicts_pipe_lsu_mem_shared", "l1tex__data_bank_conflicts_pipe_lsu"),
        _SUM,
    ),
    "shared_wavefronts": (
        ("l1tex__data_pipe_lsu_wavefronts_mem_shared", "l1tex__data_pipe_lsu_wavefronts"),
        _SUM,
    ),
    "load_sectors_per_request": (("l1tex__average_t_sectors_per_request_pipe_lsu_mem_global_op_ld",), _RATIO),
    "bytes_used_per_sector": (("smsp__sass_average_data_bytes_per_sector_mem_global_op_ld",), _RATIO),
    "active_threads_per_warp": (("smsp__thread_inst_executed_per_inst_executed",), _RATIO),
    "ipc": (("sm__inst_executed",), (".avg.per_cycle_active", ".avg.per_cycle_elapsed")),
}
_SUMS = {
    "dram_bytes": (("dram__bytes_read", "dram__bytes_write"), 1.0),
    "l2_bytes": (("lts__t_sectors",), SECTOR_BYTES),
    "l1_bytes": (("l1tex__t_sectors",), SECTOR_BYTES),
    "bank_conflicts": (
        (
            "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_ld",
            "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_st",
        ),
        1.0,
    ),
    "spill_requests": (
        ("l1tex__t_requests_pipe_lsu_mem_local_op_ld", "l1tex__t_requests_pipe_lsu_mem_local_op_st"),
        1.0,
    ),
}
"""What is added up where the total was not collected, and what each is worth."""
_QUOTIENTS = {
    "load_sectors_per_request": (
        "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum", "l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum"
    ),
}  # fmt: skip
_LABELS: Mapping[str, str] = {
    "compute (sm) throughput": "compute_ratio", "compute (sm) [%]": "compute_ratio",
    "sol sm": "compute_ratio", "sm [%]": "compute_ratio",
    "memory throughput": "memory_ratio", "memory [%]": "memory_ratio", "sol memory": "memory_ratio",
    "dram throughput": "dram_ratio", "sol dram": "dram_ratio",
    "l2 cache throughput": "l2_ratio", "sol l2": "l2_ratio", "sol l2 cache": "l2_ratio",
    "l1/tex cache throughput": "l1_ratio", "sol l1/tex cache": "l1_ratio", "sol tex": "l1_ratio",
    "duration": "duration_s", "sm frequency": "sm_clock_hz", "dram frequency": "dram_clock_hz",
    "issue slots busy": "issue_ratio", "executed ipc active": "ipc",
    "achieved occupancy": "occupancy_ratio", "theoretical occupancy": "theoretical_occupancy_ratio",
    "block limit registers": "limit_registers_blocks", "block limit shared mem": "limit_shared_blocks",
    "block limit warps": "limit_warps_blocks", "block limit sm": "limit_slots_blocks",
    "block limit barriers": "limit_barriers_blocks",
    "registers per thread": "registers_per_thread", "waves per sm": "waves",
    "grid size": "grid_blocks", "block size": "block_threads", "# sms": "sm_count",
    "local memory spilling requests": "spill_requests",
    "l1/tex hit rate": "l1_hit_ratio", "l2 hit rate": "l2_hit_ratio",
    "avg. active threads per warp": "active_threads_per_warp",
}  # fmt: skip
"""The names of the details page, in lower case."""
_BANDWIDTH = {"memory throughput", "dram throughput"}
"""Names that the details page has for shares and, in another section, for bytes per second."""
_STALL = re.compile(r"smsp__(?:average_)?(?:warps?|warp_latency)_issue_stalled_(\w{1,60})\.(ratio|pct)$")
_OPERATIONS = re.compile(r"smsp?__sass_thread_inst_executed_op_([fhd])(add|mul|fma)_pred_on\.sum$")
_TENSOR_OPERATIONS = re.compile(r"sm__ops_path_tensor_src_\w+\.sum$")

Value = Callable[[str], float | None]


def kernel_of(name: str, metrics: Iterable[str], value: Value) -> KernelMetrics:
    """A kernel from raw names; `value` returns one in base units: seconds, bytes, hertz, ratios."""
    names = list(metrics)
    have = set(names)

    def known(metric: str) -> float | None:
        return value(metric) if metric in have else None

    values: dict[str, Any] = {}
    for field, (counters, forms) in _RAW.items():
        candidates = (known(counter + form) for counter in counters for form in forms)
        if (found := next((one for one in candidates if one is not None), None)) is not None:
            values[field] = found
    for field, (counters, factor) in _SUMS.items():
        parts = [part for counter in counters if (part := known(f"{counter}.sum")) is not None]
        if field not in values and parts:
            values[field] = sum(parts) * factor
    for field, (above, below) in _QUOTIENTS.items():
        over, under = known(above), known(below)
        if field not in values and over is not None and under:
            values[field] = over / under
    if (operations := _flops(names, value)) is not None:
        values["flops"] = operations
    stalls, ratios = _stalls(names, value)
    return KernelMetrics(name=name, stalls=stalls, stall_ratios=ratios, **values)


def field_of_label(label: str, unit: str) -> str | None:
    """The field of a name of the details page; `dram_bytes_per_s` for a bandwidth."""
    plain = label.strip().lower()
    if plain in _BANDWIDTH and "/s" in unit:
        return "dram_bytes_per_s"
    return _LABELS.get(plain)


def _flops(names: Iterable[str], value: Value) -> float | None:
    counted = [
        (2.0 if found[2] == "fma" else 1.0) * (2.0 if found[1] == "h" else 1.0) * number
        for name in names
        if (found := _OPERATIONS.match(name)) and (number := value(name)) is not None
    ]
    tensor = [
        number for name in names if _TENSOR_OPERATIONS.match(name) and (number := value(name)) is not None
    ]
    # One kind of instruction alone does not count a kernel's operations.
    return sum(counted) + sum(tensor) if tensor or len(counted) > 1 else None


_Stalls = tuple[tuple[str, float], ...]


def _stalls(names: Iterable[str], value: Value) -> tuple[_Stalls, _Stalls]:
    per_issue: dict[str, float] = {}
    of_time: dict[str, float] = {}
    for name in names:
        found = _STALL.match(name)
        reason = found[1].partition("_per_")[0] if found else "selected"
        if not found or reason == "selected" or reason.endswith("_not_issued"):
            continue
        number = value(name)
        if number is None:
            continue
        kind = of_time if found[2] == "pct" else per_issue
        kind.setdefault(reason.replace("_", " "), number)
    return _worst_first(per_issue), _worst_first(of_time)


def _worst_first(found: Mapping[str, float]) -> _Stalls:
    return tuple(sorted(found.items(), key=lambda item: -item[1]))

"""The columns of the `nvml` collector: the NVML value of each, and its scale to SI units."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from perfd.collector import Column, ColumnKind
from perfd.model import Scope

PERCENT = 100.0
"""Percent per 1. This and the two below are NVML's units per unit of the column."""
MEBIBYTES = 2.0**-20
"""MiB per byte."""
MEGA = 1e-6
"""MHz per Hz."""
NO_GPM = "On GPUs older than Hopper, without permission to read GPM, and in the first sample."
NOT_REPORTED = "When the GPU or its driver does not report it."
SLOW = "Between the slow reads (`slow_interval_s`), and where the GPU does not report it."


@dataclass(frozen=True, slots=True, kw_only=True)
class NvmlMetric:
    """One NVML value with a numeric id, and how it becomes a column."""

    column: str
    id: int
    """A GPM metric id or a field id of nvml.h, as a number: older pynvml lacks the names."""
    name: str
    """Its name in nvml.h without `NVML_GPM_METRIC_` or `NVML_FI_DEV_`; also the key in recordings, for
    GPM."""
    per_unit: float = 1.0
    """NVML's units per unit of the column: the value is divided by this."""


def _metrics(*rows: tuple[str, int, str, float]) -> Sequence[NvmlMetric]:
    return tuple(
        NvmlMetric(column=column, id=number, name=name, per_unit=per_unit)
        for column, number, name, per_unit in rows
    )


GPM_METRICS = _metrics(
    ("sm_active_ratio", 2, "SM_UTIL", PERCENT),
    ("graphics_active_ratio", 1, "GRAPHICS_UTIL", PERCENT),
    ("sm_occupancy_ratio", 3, "SM_OCCUPANCY", PERCENT),
    ("tensor_active_ratio", 5, "ANY_TENSOR_UTIL", PERCENT),
    ("fp64_active_ratio", 11, "FP64_UTIL", PERCENT),
    ("fp32_active_ratio", 12, "FP32_UTIL", PERCENT),
    ("fp16_active_ratio", 13, "FP16_UTIL", PERCENT),
    ("integer_active_ratio", 4, "INTEGER_UTIL", PERCENT),
    ("dram_active_ratio", 10, "DRAM_BW_UTIL", PERCENT),
    ("nvlink_tx_bytes_per_s", 61, "NVLINK_TOTAL_TX_PER_SEC", MEBIBYTES),
    ("nvlink_rx_bytes_per_s", 60, "NVLINK_TOTAL_RX_PER_SEC", MEBIBYTES),
    ("pcie_tx_bytes_per_s", 20, "PCIE_TX_PER_SEC", MEBIBYTES),
    ("pcie_rx_bytes_per_s", 21, "PCIE_RX_PER_SEC", MEBIBYTES),
)

SLOW_GPM_METRICS = frozenset({"GRAPHICS_UTIL"})
"""Read every `slow_interval_s`: on an H200 it takes 1.4 ms, each other metric 1 µs."""

FAST_FIELDS = _metrics(
    ("clocks_limited_sw_power_s", 74, "CLOCKS_EVENT_REASON_SW_POWER_CAP", 1e9),
    ("clocks_limited_sync_boost_s", 76, "CLOCKS_EVENT_REASON_SYNC_BOOST", 1e9),
    ("clocks_limited_sw_thermal_s", 269, "CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN", 1e9),
    ("memory_temperature_celsius", 82, "MEMORY_TEMP", 1.0),
)
"""Read each time, in one call per GPU: the driver has them cached, 2 µs each on an H200."""

SLOW_FIELDS = _metrics(
    ("clocks_limited_hw_thermal_s", 270, "CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN", 1e9),
    ("clocks_limited_hw_power_brake_s", 271, "CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN", 1e9),
    ("energy_j", 83, "TOTAL_ENERGY_CONSUMPTION", 1e3),
    ("ecc_corrected_errors", 3, "ECC_SBE_VOL_TOTAL", 1.0),
    ("ecc_uncorrected_errors", 4, "ECC_DBE_VOL_TOTAL", 1.0),
    ("remapped_rows_correctable", 142, "REMAPPED_COR", 1.0),
    ("remapped_rows_uncorrectable", 143, "REMAPPED_UNC", 1.0),
    ("remapped_rows_pending", 144, "REMAPPED_PENDING", 1.0),
    ("remapped_rows_failed", 145, "REMAPPED_FAILURE", 1.0),
    ("pcie_replays", 94, "PCIE_REPLAY_COUNTER", 1.0),
)
"""Read every `slow_interval_s`: on an H200 energy takes 3 ms, the first two 0.6 ms, PCIe replays 0.1 ms;
the others are cheap but change only over hours."""


def _gauge(name: str, description: str, source: str, absent: str = NOT_REPORTED) -> Column:
    return Column(scope=Scope.GPU, name=name, help=description, source=source, absent=absent)


def _counter(name: str, description: str, source: str, absent: str = NOT_REPORTED) -> Column:
    return Column(
        scope=Scope.GPU, name=name, help=description, source=source, absent=absent, kind=ColumnKind.COUNTER
    )


def _gpm_column(name: str, description: str) -> Column:
    metric = next(metric for metric in GPM_METRICS if metric.column == name)
    absent = f"{SLOW} {NO_GPM}" if metric.name in SLOW_GPM_METRICS else NO_GPM
    return _gauge(name, description, f"GPM {metric.name}", absent)


_MIG = "In MIG mode, and where the GPU does not report it."
_LIMITED = "Time in which clocks were reduced {}, since the driver was loaded."

COLUMNS: Sequence[Column] = (
    _gpm_column("sm_active_ratio", "Share of time, averaged over SMs, in which a warp was resident."),
    _gpm_column("graphics_active_ratio", "Share of time in which a compute or graphics engine was active."),
    _gpm_column("sm_occupancy_ratio", "Resident warps over the maximum."),
    _gpm_column("tensor_active_ratio", "Share of time in which tensor cores were active, for any data type."),
    _gpm_column("fp64_active_ratio", "Share of time in which FP64 pipes were active, without tensor cores."),
    _gpm_column("fp32_active_ratio", "Share of time in which FP32 pipes were active, without tensor cores."),
    _gpm_column("fp16_active_ratio", "Share of time in which FP16 pipes were active, without tensor cores."),
    _gpm_column("integer_active_ratio", "Share of time in which integer pipes were active."),
    _gpm_column("dram_active_ratio", "Device memory traffic over the memory's peak bandwidth."),
    _gpm_column("nvlink_tx_bytes_per_s", "Sent over all NVLinks, including protocol overhead."),
    _gpm_column("nvlink_rx_bytes_per_s", "Received over all NVLinks, including protocol overhead."),
    _gpm_column("pcie_tx_bytes_per_s", "Sent by the GPU over PCIe."),
    _gpm_column("pcie_rx_bytes_per_s", "Received by the GPU over PCIe."),
    _gauge(
        "busy_ratio",
        "Share of time in which at least one kernel ran, regardless of how much of the GPU it used.",
        "nvmlDeviceGetUtilizationRates().gpu",
        _MIG,
    ),
    _gauge(
        "memory_busy_ratio",
        "Share of time in which device memory was read or written.",
        "nvmlDeviceGetUtilizationRates().memory",
        _MIG,
    ),
    _gauge("power_w", "Board power, averaged over the last second.", "nvmlDeviceGetPowerUsage"),
    _gauge("power_limit_w", "Enforced power limit.", "nvmlDeviceGetEnforcedPowerLimit"),
    _counter(
        "energy_j", "Energy consumed since the driver was loaded.", "field TOTAL_ENERGY_CONSUMPTION", SLOW
    ),
    _gauge("temperature_celsius", "GPU temperature.", "nvmlDeviceGetTemperature"),
    _gauge("memory_temperature_celsius", "Device memory temperature.", "field MEMORY_TEMP"),
    _gauge("sm_clock_hz", "SM clock.", "nvmlDeviceGetClockInfo(SM)"),
    _gauge("memory_clock_hz", "Device memory clock.", "nvmlDeviceGetClockInfo(MEM)"),
    _gauge(
        "memory_used_bytes",
        "Device memory in use, including the driver's own.",
        "nvmlDeviceGetMemoryInfo().used",
    ),
    _gauge("memory_total_bytes", "Device memory size.", "nvmlDeviceGetMemoryInfo().total"),
    _gauge(
        "clocks_event_reasons_bits",
        "Reasons for the current clocks, as NVML's bit mask: 1 idle, 2 application clocks, 4 power cap, "
        "8 hardware slowdown, 16 sync boost, 32 software thermal, 64 hardware thermal, 128 power brake.",
        "nvmlDeviceGetCurrentClocksEventReasons",
    ),
    _counter(
        "clocks_limited_sw_power_s",
        _LIMITED.format("by the power limit"),
        "field CLOCKS_EVENT_REASON_SW_POWER_CAP",
    ),
    _counter(
        "clocks_limited_sync_boost_s",
        _LIMITED.format("to match other GPUs (sync boost)"),
        "field CLOCKS_EVENT_REASON_SYNC_BOOST",
    ),
    _counter(
        "clocks_limited_sw_thermal_s",
        _LIMITED.format("by the driver's thermal limit"),
        "field CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN",
    ),
    _counter(
        "clocks_limited_hw_thermal_s",
        _LIMITED.format("by the hardware's thermal limit"),
        "field CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN",
        SLOW,
    ),
    _counter(
        "clocks_limited_hw_power_brake_s",
        _LIMITED.format("by the power brake signal"),
        "field CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN",
        SLOW,
    ),
    _counter(
        "ecc_corrected_errors",
        "Corrected single-bit memory errors since the driver was loaded.",
        "field ECC_SBE_VOL_TOTAL",
        SLOW,
    ),
    _counter(
        "ecc_uncorrected_errors",
        "Double-bit memory errors, since the driver was loaded.",
        "field ECC_DBE_VOL_TOTAL",
        SLOW,
    ),
    _gauge(
        "remapped_rows_correctable",
        "Memory rows remapped after corrected errors.",
        "field REMAPPED_COR",
        SLOW,
    ),
    _gauge(
        "remapped_rows_uncorrectable",
        "Memory rows remapped after uncorrectable errors.",
        "field REMAPPED_UNC",
        SLOW,
    ),
    _gauge(
        "remapped_rows_pending",
        "1 when a row will be remapped at the next GPU reset.",
        "field REMAPPED_PENDING",
        SLOW,
    ),
    _gauge(
        "remapped_rows_failed",
        "1 when a row could not be remapped: the GPU must be replaced.",
        "field REMAPPED_FAILURE",
        SLOW,
    ),
    _counter("pcie_replays", "PCIe packets retransmitted.", "field PCIE_REPLAY_COUNTER", SLOW),
)

NAMES: Sequence[str] = tuple(column.name for column in COLUMNS)
INDEX: Mapping[str, int] = {name: position for position, name in enumerate(NAMES)}
"""Position of a column in a row."""

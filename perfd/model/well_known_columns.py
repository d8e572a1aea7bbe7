"""The columns of sample tables that perfd itself reads: name with unit, scope and kind of each.

Any collector may provide them (`CollectorSpec.provides`): perfd knows the column, not the collector. All
other columns are exported as they are, and no code of perfd reads them.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Self

from perfd.model.samples import ColumnKind, Scope


class WellKnownColumn(StrEnum):
    """The name of a column that perfd reads; its last word is the unit. Each scope has a subclass."""

    kind: ColumnKind

    def __new__(cls, name: str, kind: ColumnKind = ColumnKind.GAUGE) -> Self:
        column = str.__new__(cls, name)
        column._value_ = name
        column.kind = kind
        return column

    @property
    def scope(self) -> Scope:
        """The scope of the tables that hold the column."""
        return _SCOPES[type(self)]


class GpuColumn(WellKnownColumn):
    """Columns per GPU."""

    SM_ACTIVE = "sm_active_ratio"
    TENSOR_ACTIVE = "tensor_active_ratio"
    DRAM_ACTIVE = "dram_active_ratio"
    GRAPHICS_ACTIVE = "graphics_active_ratio"
    BUSY = "busy_ratio"
    POWER = "power_w"
    SM_CLOCK = "sm_clock_hz"
    TEMPERATURE = "temperature_celsius"
    PCIE_RX = "pcie_rx_bytes_per_s"
    PCIE_TX = "pcie_tx_bytes_per_s"
    MEMORY_USED = "memory_used_bytes"
    MEMORY_TOTAL = "memory_total_bytes"
    CLOCKS_EVENT_REASONS = "clocks_event_reasons_bits"
    LIMITED_SW_POWER = "clocks_limited_sw_power_s", ColumnKind.COUNTER
    LIMITED_SW_THERMAL = "clocks_limited_sw_thermal_s", ColumnKind.COUNTER
    LIMITED_HW_THERMAL = "clocks_limited_hw_thermal_s", ColumnKind.COUNTER
    ECC_UNCORRECTED = "ecc_uncorrected_errors", ColumnKind.COUNTER
    LIMITED_HW_POWER_BRAKE = "clocks_limited_hw_power_brake_s", ColumnKind.COUNTER


class NicColumn(WellKnownColumn):
    """Columns per network interface or InfiniBand port."""

    LINK_UP = "link_up"
    SPEED = "speed_bytes_per_s"
    LINK_DOWNS = "link_downs", ColumnKind.COUNTER


class RankColumn(WellKnownColumn):
    """Columns per rank."""

    NCCL_BUSY = "nccl_busy_s", ColumnKind.COUNTER
    NCCL_OPERATIONS = "nccl_operations", ColumnKind.COUNTER
    NCCL_LOST_OPERATIONS = "nccl_lost_operations", ColumnKind.COUNTER
    CPU_WAIT = "cpu_wait_ratio"
    CPU_THROTTLED = "cpu_throttled_ratio"
    CPU_DEMAND = "cpu_demand_ratio"
    IO_WAIT = "io_wait_ratio"
    MAJOR_FAULTS = "major_page_faults_per_s"
    SWAPPED = "swapped_bytes"
    REMOTE_NUMA = "remote_numa_ratio"
    OTHERS_CPU = "other_processes_cpu_ratio"
    LAUNCH_BUSY = "launch_threads_busy_s", ColumnKind.COUNTER
    LOADER_BUSY = "loader_workers_busy_s", ColumnKind.COUNTER
    LOADER_WORKERS = "loader_workers"
    IO = "io_bytes", ColumnKind.COUNTER


class ServerColumn(WellKnownColumn):
    """Columns per serving engine."""

    UP = "up"
    RUNNING_REQUESTS = "running_requests"
    QUEUED_REQUESTS = "queued_requests"
    KV_CACHE_USED = "kv_cache_used_ratio"
    PREFIX_HIT = "prefix_hit_ratio"
    CUDA_GRAPH = "cuda_graph_ratio"
    GPU_BUSY = "gpu_busy_ratio"
    REPLICA_IMBALANCE = "replica_imbalance_ratio"
    GENERATION_TOKENS_PER_S = "generation_tokens_per_s"
    PROMPT_TOKENS_PER_S = "prompt_tokens_per_s"
    TTFT_P50 = "ttft_p50_s"
    TTFT_P90 = "ttft_p90_s"
    TTFT_P99 = "ttft_p99_s"
    TTFT_MEAN = "ttft_mean_s"
    TPOT_P50 = "tpot_p50_s"
    TPOT_P90 = "tpot_p90_s"
    TPOT_P99 = "tpot_p99_s"
    TPOT_MEAN = "tpot_mean_s"
    E2E_P50 = "e2e_p50_s"
    E2E_P90 = "e2e_p90_s"
    E2E_P99 = "e2e_p99_s"
    E2E_MEAN = "e2e_mean_s"
    QUEUE_P50 = "queue_p50_s"
    QUEUE_P90 = "queue_p90_s"
    QUEUE_P99 = "queue_p99_s"
    QUEUE_MEAN = "queue_mean_s"
    TPOT_FLOOR = "tpot_floor_s"
    TPOT_THEORY = "tpot_theory_s"
    TTFT_FLOOR = "ttft_floor_s"
    MEMORY_BANDWIDTH_USED = "memory_bandwidth_used_ratio"


_SCOPES: Mapping[type[WellKnownColumn], Scope] = {
    GpuColumn: Scope.GPU,
    NicColumn: Scope.NIC,
    RankColumn: Scope.RANK,
    ServerColumn: Scope.SERVER,
}

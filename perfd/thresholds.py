"""The thresholds of findings and alerts, from `perfd/data/thresholds.toml`: each with a unit and a source."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.resources import files

import msgspec.toml


class Threshold(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One row of the file, which says what each field means."""

    value: int | float
    unit: str
    meaning: str
    source: str
    rules: tuple[str, ...] = ()


class Thresholds(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The value of each row by its name; see the file for their meaning."""

    mfu_low_ratio: float
    mfu_good_ratio: float
    mfu_excellent_ratio: float
    mfu_typical_low_ratio: float
    mfu_typical_high_ratio: float
    mfu_implausible_ratio: float
    headline_ratio: float
    compute_ratio: float
    compute_most_ratio: float
    memory_bound_dram_ratio: float
    memory_bound_tensor_ratio: float
    memory_bound_matrix_ratio: float
    memory_bound_least_dram_ratio: float
    optimizer_ratio: float
    optimizer_alert_ratio: float
    memory_capacity_ratio: float
    memory_high_ratio: float
    memory_low_ratio: float
    gradient_reduction_ratio: float
    communication_ratio: float
    communication_alert_ratio: float
    waiting_alert_ratio: float
    nccl_lost_alert_ratio: float
    slow_link_ratio: float
    slow_link_nvlink_ratio: float
    slow_link_message_bytes: float
    slow_link_cost_ratio: float
    data_loading_ratio: float
    data_loading_severe_ratio: float
    data_loading_spread_ratio: float
    pipeline_stall_ratio: float
    pipeline_excess_ratio: float
    pipeline_trace_stall_ratio: float
    pipeline_imbalance_ratio: float
    pipeline_uneven_ratio: float
    pipeline_expected_ratio: float
    idle_ratio: float
    unaccounted_ratio: float
    launch_idle_ratio: float
    synchronization_ratio: float
    small_kernels_sm_ratio: float
    small_kernels_time_ratio: float
    small_kernels_tensor_ratio: float
    host_transfer_bytes_per_s: float
    host_transfer_slot_ratio: float
    host_transfer_cost_ratio: float
    exposed_copies_ratio: float
    pageable_copies_ratio: float
    gpu_idle_alert_ratio: float
    host_cpu_wait_ratio: float
    host_throttled_ratio: float
    host_io_wait_ratio: float
    host_page_faults_per_s: float
    host_remote_numa_ratio: float
    host_contention_cost_ratio: float
    late_hosts_compute_ratio: float
    late_hosts_waiting_compute_ratio: float
    late_hosts_idle_ratio: float
    late_hosts_waiting_ratio: float
    late_hosts_gain_ratio: float
    late_hosts_alert_gain_ratio: float
    tensor_wait_ratio: float
    periodic_stall_ratio: float
    periodic_stall_count: int
    expert_imbalance_ratio: float
    expert_imbalance_persistence_ratio: float
    expert_imbalance_cost_ratio: float
    straggler_slowdown_ratio: float
    straggler_wait_ratio: float
    straggler_wait_without_steps_ratio: float
    straggler_certain_wait_ratio: float
    straggler_share_ratio: float
    straggler_persistence_ratio: float
    straggler_block_persistence_ratio: float
    straggler_kernels_ratio: float
    finding_alert_confidence_ratio: float
    sequence_correlation_ratio: float
    sequence_spread_ratio: float
    sequence_wait_ratio: float
    throttling_time_ratio: float
    throttling_clock_ratio: float
    power_cap_clock_ratio: float
    thermal_alert_ratio: float
    power_brake_alert_ratio: float
    power_cap_alert_ratio: float
    steady_steps_count: int
    verdict_steady_steps_count: int
    verdict_hold_steps_count: int
    verdict_hold_s: float
    blame_hold_steps_count: int
    blame_hold_s: float
    verdict_margin_ratio: float
    step_regression_count: int
    efficiency_alert_steps_count: int
    alert_hold_ratio: float
    step_regression_ratio: float
    step_jitter_ratio: float
    sleeping_hosts_asleep_ratio: float
    sleeping_hosts_more_ratio: float
    sleeping_hosts_lead_ratio: float
    sleeping_hosts_pause_ratio: float
    sleeping_hosts_kernels_ratio: float
    loader_workers_busy_ratio: float
    loader_workers_asleep_ratio: float
    hang_silence_s: float
    hang_one_rank_silence_s: float
    hang_intervals: float
    hang_pauses: float
    hang_certain_s: float
    hang_checkpoint_s: float
    hang_io_bytes_per_s: float
    hang_first_evaluation_s: float
    hang_gpu_busy_ratio: float
    hang_gpu_idle_ratio: float
    log_silent_alert_s: float
    log_silent_hang_s: float
    restart_stepless_s: float
    restart_stepless_ratio: float
    trace_lost_records_ratio: float
    trace_link_ratio: float
    trace_opaque_ratio: float
    trace_memory_bound_ratio: float
    trace_tuning_ratio: float
    serving_tail_ratio: float
    serving_slow_decode_ratio: float
    serving_slow_prefill_factor: float
    serving_kv_reads_ratio: float
    serving_batch_cost_ratio: float
    serving_kv_full_ratio: float
    serving_cache_hit_ratio: float
    serving_few_requests_ratio: float
    serving_kv_low_ratio: float
    serving_request_limit_ratio: float
    serving_queue_ratio: float
    serving_queue_ttft_ratio: float
    serving_graph_ratio: float
    serving_gpu_busy_ratio: float
    serving_imbalance_ratio: float
    serving_imbalance_requests: float
    serving_accept_tokens: float
    serving_long_prompt_ratio: float
    serving_long_prompt_steps: float
    node_suspect_ratio: float
    node_bad_ratio: float
    node_incident_s: float
    memory_unused_ratio: float
    memory_use_ratio: float
    memory_single_ratio: float
    exporter_queue_alert_count: float
    upload_wait_alert_s: float
    round_stale_alert_s: float
    nats_lag_alert_s: float
    nats_unsettled_alert_count: int
    nats_undelivered_alert_s: float
    nats_interruptions_alert_count: int


@cache
def threshold_rows() -> Mapping[str, Threshold]:
    """Every row by name, in the order of the file."""
    content = files("perfd").joinpath("data", "thresholds.toml").read_bytes()
    return msgspec.toml.decode(content, type=dict[str, Threshold])


THRESHOLDS = msgspec.convert({name: row.value for name, row in threshold_rows().items()}, Thresholds)

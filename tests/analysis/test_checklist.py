"""The decision tree for MFU, question by question, and tensor parallelism over nodes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from analysis.jobs import description, gpu_table, infos, job_data, phase_table, step_table

from perfd.analysis.data.job_data import GpuKey, GpuTable, JobData
from perfd.analysis.diagnosis import AnalysisSettings, Check, CheckState, JobSummary, summarise
from perfd.analysis.diagnosis.checklist import checklist
from perfd.analysis.diagnosis.job_analysis import facts_of
from perfd.analysis.findings import Kind
from perfd.analysis.steps import gpu_activity, steady_rows
from perfd.analysis.steps.sleeping_hosts import SleepingHosts
from perfd.gpu_peaks import load_peaks
from perfd.model import ModelShape, MoeShape, ParallelLayout

PEAK = 989.4e12
STEPS = 20


def job(
    mfu: float | None,
    *,
    timers: dict[str, tuple[float, float]] | None = None,
    arguments: dict[str, str] | None = None,
    memory: float = 0.85,
    times: list[float] | None = None,
    **layout: int,
) -> JobData:
    """Sixteen H100s on two nodes that reach this MFU."""
    steps = step_table(times or [1.0] * STEPS, **({} if mfu is None else {"flops_per_s_per_gpu": mfu * PEAK}))
    sizes = {"world_size": 16, "tp": 1, "pp": 1, "dp": 16, **layout}
    return job_data(
        steps,
        description=replace(description(**sizes), arguments=arguments or {}),
        phases=phase_table(steps, timers),
        gpu=gpu_table(steps, {"memory_used_bytes": [memory * 80e9] * 16, "memory_total_bytes": [80e9] * 16}),
        gpu_infos=infos("NVIDIA H100 80GB HBM3", 16),
    )


def summary(data: JobData) -> JobSummary:
    return summarise(data, AnalysisSettings(peaks=load_peaks()))


def check(data: JobData, name: str) -> Check:
    (found,) = [one for one in summary(data).checklist.checks if one.name == name]
    return found


def asked(data: JobData) -> list[str]:
    return [one.name for one in summary(data).checklist.checks if one.in_path]


@pytest.mark.parametrize(
    ("mfu", "names"),
    [
        (0.29, ["tensor_in_node", "data_loading", "pipeline_bubble", "communication"]),
        (0.31, ["pipeline_bubble", "communication"]),
        (0.41, ["overlap"]),
        (0.51, []),
        (None, ["tensor_in_node", "data_loading", "pipeline_bubble", "communication", "overlap"]),
    ],
)
def test_the_tree_asks_what_fits_the_mfu(mfu: float | None, names: list[str]):
    assert asked(job(mfu)) == names


@pytest.mark.parametrize(
    ("name", "timers", "state"),
    [
        ("data_loading", {"batch-generator": (0.049, 0.049)}, "passed"),
        ("data_loading", {"batch-generator": (0.051, 0.051)}, "failed"),
        ("data_loading", {}, "unknown"),
        ("communication", {"all-grads-sync": (0.29, 0.29)}, "passed"),
        ("communication", {"all-grads-sync": (0.31, 0.31)}, "failed"),
        ("communication", {}, "unknown"),
        ("gradient_reduction", {"all-grads-sync": (0.19, 0.19)}, "passed"),
        ("gradient_reduction", {"all-grads-sync": (0.21, 0.21)}, "failed"),
        ("forward_backward", {"forward-compute": (0.3, 0.3), "backward-compute": (0.41, 0.41)}, "passed"),
        ("forward_backward", {"forward-compute": (0.3, 0.3), "backward-compute": (0.39, 0.39)}, "failed"),
        ("forward_backward", {}, "unknown"),
    ],
)  # fmt: skip
def test_shares_of_a_step_are_held_against_their_limits(name: str, timers: dict, state: str):
    found = check(job(0.2, timers=timers), name)

    assert found.state == state
    assert (found.value is None) is (state == "unknown")
    assert found.source
    assert found.limit


@pytest.mark.parametrize(
    ("used", "fits", "full"),
    [(0.79, "passed", "failed"), (0.85, "passed", "passed"), (0.91, "failed", "passed")],
)
def test_memory_should_be_between_80_and_90_percent_full(used: float, fits: str, full: str):
    data = job(0.2, memory=used)

    assert (check(data, "memory").state, check(data, "memory_headroom").state) == (fits, full)


def test_a_step_time_that_jumps_is_jitter():
    even, jumping = job(0.2), job(0.2, times=[1.0, 1.3, 1.6, 1.9] * 5)

    assert check(even, "jitter").state is CheckState.PASSED
    assert check(jumping, "jitter").state is CheckState.FAILED


@pytest.mark.parametrize(
    "times",
    [
        pytest.param([1.0] * 10 + [1.9] * 10, id="another pace"),
        pytest.param([1.0 + 0.05 * step for step in range(STEPS)], id="a batch that grows"),
    ],
)
def test_a_pace_that_changes_is_no_jitter(times: list[float]):
    assert check(job(0.2, times=times), "jitter").state is CheckState.PASSED


@pytest.mark.parametrize(
    ("timer", "words"),
    [
        ("batch-generator", "long steps are longer by data loading (100% of the excess)"),
        ("all-grads-sync", "long steps are longer by communication (100% of the excess)"),
        ("optimizer", "long steps are longer by the optimizer (100% of the excess)"),
        ("forward-compute", "long steps are longer by forward (100% of the excess)"),
    ],
)
def test_a_step_time_that_jumps_has_the_phase_that_jumps_with_it(timer: str, words: str):
    times = [1.0, 1.3, 1.6, 1.9] * 5
    data = job(0.2, times=times)
    steady_s = {"forward-compute": 0.3, "batch-generator": 0.1, "all-grads-sync": 0.1, "optimizer": 0.1}
    columns = {name: np.full(STEPS, seconds) for name, seconds in steady_s.items()}
    columns[timer] = columns[timer] + np.array(times) - 1.0
    if timer == "batch-generator":
        # Megatron's forward holds the input.
        columns["forward-compute"] = columns["forward-compute"] + np.array(times) - 1.0
    jumping = replace(data, phases=replace(data.phases, min_s=columns, max_s=columns))

    found = check(jumping, "jitter")

    assert found.state is CheckState.FAILED
    assert found.value is not None
    assert words in found.value
    assert f"timers: {timer}" in (found.source or "")


def test_a_phase_that_does_not_jump_is_not_the_cause():
    times = [1.0, 1.3, 1.6, 1.9] * 5
    found = check(job(0.2, times=times, timers={"batch-generator": (0.3, 0.3)}), "jitter")

    assert found.state is CheckState.FAILED
    assert "longer by" not in (found.value or "")


def _batched(moe: MoeShape | None = None, precision: str = "bf16", **layout: int) -> JobData:
    data = job(0.2, **layout)
    model = ModelShape(
        layers=2, hidden_size=64, ffn_size=256, attention_heads=4, kv_heads=4, head_size=16,
        sequence_length=512, moe=moe,
    )  # fmt: skip
    return replace(data, description=replace(data.description, model=model, precision=precision))


@pytest.mark.parametrize(
    ("layout", "value", "state"),
    [
        ({"micro_batch_size": 1}, "512 tokens", "passed"),
        ({"micro_batch_size": 2, "cp": 2}, "512 tokens", "passed"),
        ({"micro_batch_size": 1, "cp": 2}, "256 tokens", "failed"),
        ({}, None, "unknown"),
    ],
)
def test_a_micro_batch_is_held_against_the_critical_one(
    layout: dict[str, int], value: str | None, state: str
):
    found = check(_batched(**layout), "critical_batch")

    assert (found.value, found.state) == (value, state)
    # An H100: 989.4 TFLOP/s over 3.35 TB/s.
    assert found.limit == "at least 295 tokens"


def test_experts_share_the_tokens_of_their_group():
    moe = MoeShape(experts=64, top_k=2, expert_ffn_size=64, layer_pattern=[1, 1])
    found = check(_batched(moe=moe, micro_batch_size=8, ep=8), "critical_batch")

    assert (found.value, found.state) == ("1,024 tokens", CheckState.PASSED)


def test_weights_of_one_byte_need_as_many_tokens_at_twice_the_peak():
    assert check(_batched(precision="fp8"), "critical_batch").limit == "at least 295 tokens"


def test_options_for_overlap_that_are_not_set_are_named():
    arguments = {"overlap_grad_reduce": "True", "use_distributed_optimizer": "True"}
    found = check(job(0.45, arguments=arguments), "overlap")

    assert (found.state, found.value) == (CheckState.FAILED, "not set: --overlap-param-gather")
    assert (
        check(job(0.45, arguments=arguments | {"overlap_param_gather": "True"}), "overlap").state == "passed"
    )
    assert check(job(0.45), "overlap").state is CheckState.UNKNOWN


@pytest.mark.parametrize(
    ("layout", "state", "value"),
    [
        ({"pp": 16, "dp": 1}, "passed", "one replica, and no tensor parallelism"),
        ({"pp": 8, "cp": 2, "dp": 1}, "failed", "--overlap-param-gather"),
        ({"pp": 8, "tp": 2, "dp": 1}, "failed", "--tp-comm-overlap"),
        ({"pp": 8, "dp": 2}, "failed", "--overlap-param-gather"),
    ],
)
def test_options_of_overlap_are_those_of_the_dimensions_that_the_job_has(
    layout: dict[str, int], state: str, value: str
):
    found = check(job(0.45, arguments={"lr": "1e-4"}, **layout), "overlap")
    assert (found.state, found.value is not None and value in found.value) == (state, True)
    assert ("--overlap-grad-reduce" in (found.value or "")) == (layout.get("cp", 1) * layout["dp"] > 1)


def test_a_single_rank_has_no_groups_and_no_pipeline():
    alone = job(0.2, world_size=1, dp=1)
    unknown = replace(alone, description=replace(alone.description, parallel=ParallelLayout(world_size=1)))
    for name in ("tensor_in_node", "pipeline_bubble", "communication", "overlap"):
        found = check(unknown, name)
        assert (found.state, found.value is None, not found.source) == ("passed", False, False)


@pytest.mark.parametrize(
    ("workers", "state", "value"), [(4, "failed", "35.0%"), (None, "failed", "35.0%"), (0, "unknown", None)]
)
def test_hosts_that_wait_for_loader_workers_are_data_loading_here_too(
    workers: int | None, state: str, value: str | None
):
    data = job(0.2)
    settings = AnalysisSettings(peaks=load_peaks())
    steady = steady_rows(data.steps, ())
    facts = facts_of(data, settings, steady, gpu_activity(data.gpu, data.steps, steady.rows))
    asleep = SleepingHosts(asleep_ratio=0.4, gain_ratio=0.35, loader_workers=workers)
    (found,) = [
        one for one in checklist(replace(facts, sleeping=asleep)).checks if one.name == "data_loading"
    ]
    assert (found.state, found.value) == (state, value)


def test_fp32_fails_and_an_unknown_precision_is_unknown():
    data = job(0.2)

    assert check(data, "precision").state is CheckState.PASSED
    full = replace(data, description=replace(data.description, precision="fp32"))
    assert check(full, "precision").state is CheckState.FAILED
    silent = replace(data, description=replace(data.description, precision=None))
    assert check(silent, "precision").state is CheckState.UNKNOWN


def test_the_conclusion_is_the_first_question_that_fails_and_says_what_is_unknown_before_it():
    found = summary(job(0.2, timers={"all-grads-sync": (0.4, 0.4)})).checklist

    assert found.conclusion == (
        "MFU is 20.0%: communication is 40.0%, limit under 30%. Unknown before it: data loading."
    )
    assert summary(job(0.55)).checklist.conclusion == "MFU is 55.0%: excellent, nothing to ask."


# Tensor parallelism over nodes.


def test_tensor_groups_over_nodes_come_before_poor_computation():
    found = summary(job(0.28, tp=16, dp=1))

    assert found.bottleneck.kind is Kind.TENSOR_OVER_NODES
    assert found.bottleneck.gain_ratio == pytest.approx(0.3)
    assert "crosses nodes of 8 GPUs: keep it inside a node" in found.bottleneck.advice
    assert check(job(0.28, tp=16, dp=1), "tensor_in_node").value == "16 ranks on 2 nodes"
    assert check(job(0.28), "tensor_in_node").value == "1 rank on 1 node"
    assert found.checklist.conclusion == "MFU is 28.0%: tensor in node is 16 ranks on 2 nodes, limit 1 node."


@pytest.mark.parametrize(("mfu", "tp"), [(0.28, 8), (0.41, 16)])
def test_tensor_groups_in_a_node_or_of_a_fast_job_are_no_finding(mfu: float, tp: int):
    assert Kind.TENSOR_OVER_NODES not in {one.kind for one in summary(job(mfu, tp=tp, dp=16 // tp)).findings}


def test_ranks_that_are_placed_askew_put_a_small_group_on_two_nodes():
    data = job(0.28, tp=4, dp=4)
    askew = [GpuKey(node=f"node{rank % 2}", gpu=str(rank // 2), rank=rank) for rank in range(16)]
    data = replace(data, gpu=GpuTable(time_unix_s=data.gpu.time_unix_s, gpus=askew, metrics=data.gpu.metrics))

    found = summary(data).bottleneck

    assert found.kind is Kind.TENSOR_OVER_NODES
    assert found.advice.startswith("Place ranks so that each 4 in a row are on one node")


def test_without_nodes_or_layout_it_is_unknown():
    data = job(0.28, tp=16, dp=1)
    nowhere = replace(data, gpu=GpuTable(time_unix_s=data.gpu.time_unix_s, gpus=(), metrics={}))

    assert check(nowhere, "tensor_in_node").state is CheckState.UNKNOWN
    unsaid = replace(data, description=replace(data.description, parallel=description(tp=None).parallel))
    assert check(unsaid, "tensor_in_node").state is CheckState.UNKNOWN


@pytest.mark.parametrize(("node_of", "state"), [(1, CheckState.PASSED), (2, CheckState.UNKNOWN)])
def test_without_layout_no_group_leaves_the_only_node(node_of: int, state: CheckState):
    data = job(0.28)
    keys = [GpuKey(node=f"node{rank % node_of}", gpu=str(rank), rank=rank) for rank in range(16)]
    table = GpuTable(time_unix_s=data.gpu.time_unix_s, gpus=keys, metrics=data.gpu.metrics)
    unsaid = replace(data.description, parallel=ParallelLayout(world_size=16))

    assert check(replace(data, gpu=table, description=unsaid), "tensor_in_node").state is state


def test_where_not_all_ranks_are_seen_on_the_only_node_seen_it_is_unknown():
    data = job(0.28)
    keys = [GpuKey(node="node0", gpu=str(rank), rank=rank) for rank in range(8)]
    metrics = {name: values[:, :8] for name, values in data.gpu.metrics.items()}
    table = GpuTable(time_unix_s=data.gpu.time_unix_s, gpus=keys, metrics=metrics)
    unsaid = replace(data.description, parallel=ParallelLayout(world_size=16))

    found = check(replace(data, gpu=table, description=unsaid), "tensor_in_node")

    assert found.state is CheckState.UNKNOWN

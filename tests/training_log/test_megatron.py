"""What is particular about Megatron's lines."""

from __future__ import annotations

import pytest
from perfd_collectors.training_log.megatron.megatron_arguments import layer_pattern
from training_log.logs import dump, iteration, records_of, timers

from perfd.model import Event, EventKind, JobDescription, MemoryReport, Recompute, StepPhases, TrainingStep

LEVEL_1 = {"forward-backward": (1810.25, 1812.5), "optimizer": (40.5, 41.0)}


def described(text: str) -> JobDescription:
    return records_of(text, JobDescription)[-1]


def test_all_fields_of_an_iteration_line_are_read_in_si_units() -> None:
    (step,) = records_of(iteration(20, ms=5361.6), TrainingStep)

    assert step.step_time_s == 5.3616
    assert step.flops_per_s_per_gpu == 400.5e12
    assert step.global_batch_size == 64
    assert step.consumed_samples == 1280
    assert step.losses == {"lm loss": 2.5}
    assert step.learning_rate == 1e-4
    assert step.grad_norm == 0.812
    assert (step.skipped_steps, step.nan_steps) == (0, 0)
    assert step.samples_per_s == pytest.approx(64 / 5.3616)


def test_the_order_of_fields_does_not_matter_and_unknown_ones_are_kept() -> None:
    line = " iteration 5/9 | mine: 1.5 | lm loss: 3.5 | elapsed time per iteration (ms): 10.0 | z_loss: 1 |\n"

    (step,) = records_of(line, TrainingStep)

    assert step.extras == {"mine": 1.5}
    assert step.losses == {"lm loss": 3.5, "z_loss": 1.0}
    assert step.step_time_s == 0.01


@pytest.mark.parametrize("loss", ["nan", "inf", "-inf", "", "2.5E", "two"])
def test_a_loss_that_is_no_number_is_absent(loss: str) -> None:
    (step,) = records_of(iteration(5, loss=loss), TrainingStep)

    assert step.losses == {}
    assert step.step_time_s == 2.0


def test_an_iteration_line_after_another_writers_unfinished_line_is_read() -> None:
    text = "Number of parameters in transformer block in billions:  1.21" + iteration(3) + "Total"

    assert [step.step for step in records_of(text, TrainingStep)] == [3]


def test_two_iteration_lines_run_together_are_two_and_the_cut_field_is_of_neither() -> None:
    first = iteration(3)[: iteration(3).index("64 | lm loss")] + "6"

    three, four = records_of(first + iteration(4), TrainingStep)

    assert (three.step, three.global_batch_size) == (3, None)
    assert (four.step, four.global_batch_size) == (4, 64)


def test_the_timer_block_after_a_line_is_that_lines() -> None:
    text = iteration(10) + timers(LEVEL_1) + iteration(20) + timers({"forward-backward": (1, 2)})

    ten, twenty = records_of(text, StepPhases)

    assert (ten.step, twenty.step) == (10, 20)
    assert (ten.phases["forward-backward"].min_s, ten.phases["forward-backward"].max_s) == (1.81025, 1.8125)
    assert twenty.phases["forward-backward"].max_s == 0.002


def test_timers_on_the_line_itself_are_its_own() -> None:
    line = (
        "iteration {} | elapsed time per iteration (ms): 1234.5 | forward-compute: 456.2 | backward-compute:"
        " 567.3 | backward-params-all-reduce: 123.4 | optimizer: 87.6 | batch-generator: {}.5\n"
    )
    text = line.format(100, 1) + line.format(200, 2)

    steps, phases = records_of(text, TrainingStep), records_of(text, StepPhases)

    assert [(step.step, step.step_time_s) for step in steps] == [(100, 1.2345), (200, 1.2345)]
    assert [(one.step, one.phases["batch-generator"].max_s) for one in phases] == [
        (100, 0.0015),
        (200, 0.0025),
    ]
    assert phases[0].phases["backward-params-all-reduce"].max_s == 0.1234
    assert len(phases[0].phases) == 5


def test_timer_blocks_before_their_lines_are_matched() -> None:
    text = "".join(timers({"optimizer": (step, step)}) + iteration(step) for step in (10, 20, 30))

    blocks = records_of(text, StepPhases)

    assert [(block.step, block.phases["optimizer"].max_s) for block in blocks] == [
        (10, 0.01),
        (20, 0.02),
        (30, 0.03),
    ]


def test_a_block_that_overtakes_its_line_now_and_then_is_matched() -> None:
    pairs = {step: (timers({"optimizer": (step, step)}), iteration(step)) for step in (10, 20, 30, 40)}
    text = "".join("".join(pair if step == 30 else pair[::-1]) for step, pair in pairs.items())

    blocks = records_of(text, StepPhases)

    assert [(block.step, block.phases["optimizer"].max_s) for block in blocks] == [
        (10, 0.01),
        (20, 0.02),
        (30, 0.03),
        (40, 0.04),
    ]


def test_a_block_too_many_does_not_shift_all_later_ones() -> None:
    text = iteration(10) + timers({"optimizer": (10, 10)}) + timers({"optimizer": (5, 5)})
    text += "".join(iteration(step) + timers({"optimizer": (step, step)}) for step in (20, 30, 40))

    blocks = records_of(text, StepPhases)

    assert [(block.step, block.phases["optimizer"].max_s) for block in blocks][1:] == [
        (20, 0.02),
        (30, 0.03),
        (40, 0.04),
    ]


def test_warnings_between_a_line_and_its_block_do_no_harm() -> None:
    text = iteration(10) + "warnings.warn(\n" * 5 + timers(LEVEL_1)

    assert [block.step for block in records_of(text, StepPhases)] == [10]


def test_timers_of_the_start_are_no_phases_of_a_step() -> None:
    setup = {"model-and-optimizer-setup": (10.0, 20.0), "train/valid/test-data-iterators-setup": (1.0, 2.0)}

    assert records_of(timers(setup) + iteration(10), StepPhases) == []


def test_the_timers_of_the_first_iteration_are_fixed() -> None:
    # Core 0.16 prints the first iteration, divides its timers by the log interval and goes on averaging.
    text = dump() + "".join(
        iteration(step, stamp=f"2026-05-01 10:00:{step:02d}.123456") + timers({"optimizer": (10.0, 20.0)})
        for step in (1, 10, 20)
    )

    first, second, third = records_of(text, TrainingStep)
    phases = [block.phases["optimizer"].max_s for block in records_of(text, StepPhases)]

    assert [(step.steps_covered, step.warmup) for step in (first, second, third)] == [
        (1, True),
        (10, True),
        (10, False),
    ]
    assert phases == [0.2, 0.02, 0.02]


def test_the_first_line_after_a_resume_says_how_many_steps_it_covers() -> None:
    loaded = "  successfully loaded checkpoint from /data/ckpt [ t 1/1, p 1/1 ] at iteration 503\n"
    text = dump() + loaded + iteration(510) + timers({"optimizer": (7.0, 7.0)}) + iteration(520)

    first, second = records_of(text, TrainingStep)
    (block,) = records_of(text, StepPhases)

    assert (first.steps_covered, first.warmup) == (7, True)
    assert (second.steps_covered, second.warmup) == (10, False)
    assert block.phases["optimizer"].max_s == pytest.approx(0.010)


def test_a_second_start_in_one_log_is_a_restart() -> None:
    text = dump() + iteration(10) + iteration(20) + dump() + iteration(20, stamp="2025-05-01 11:00:00")

    kinds = [event.kind for event in records_of(text, Event)]
    steps = records_of(text, TrainingStep)

    assert kinds == [EventKind.JOB_STARTED, EventKind.RESTARTED]
    assert [(step.step, step.warmup) for step in steps] == [(10, True), (20, False), (20, True)]


def test_a_line_that_two_ranks_print_counts_once() -> None:
    text = "".join(f"[default{rank}]:{iteration(step)}" for step in (10, 20) for rank in (0, 1))

    assert [step.step for step in records_of(text, TrainingStep)] == [10, 20]


@pytest.mark.parametrize(("stamp", "count"), [("10:01:59", 2), ("10:02:01", 3)])
def test_a_line_of_the_same_step_two_minutes_later_is_another_one(stamp: str, count: int) -> None:
    again = iteration(1, stamp=f"2025-05-01 {stamp}")
    assert len(records_of(iteration(1) + iteration(2) + again, TrainingStep)) == count


def test_the_dump_describes_a_dense_model() -> None:
    said = described(dump() + " > padded vocab (size: 50257) with 47 dummy tokens (new size: 50304)\n")

    assert said.model is not None
    assert (said.model.layers, said.model.hidden_size, said.model.head_size) == (24, 2048, 128)
    assert said.model.kv_heads == 16, "num_query_groups does not count without group_query_attention"
    assert said.model.vocab_size == 50304
    assert (said.model.moe, said.model.mla) == (None, None)
    assert (said.parallel.world_size, said.parallel.dp, said.parallel.vp) == (4, 4, 1)
    assert said.parallel.micro_batches == 8
    assert (said.precision, said.log_interval_steps) == ("bf16", 10)


def test_grouped_query_attention_counts_when_it_is_on() -> None:
    said = described(dump(group_query_attention=True, num_query_groups=4))

    assert said.model is not None
    assert said.model.kv_heads == 4


def test_latent_attention_and_experts_count_only_when_they_are_on() -> None:
    latent = {
        "kv_lora_rank": 512,
        "q_lora_rank": 1536,
        "qk_head_dim": 128,
        "qk_pos_emb_head_dim": 64,
        "v_head_dim": 128,
    }
    off = described(dump(**latent))
    on = described(
        dump(**latent, multi_latent_attention=True, num_experts=8, moe_layer_freq="([0]*4+[1]*20)")
    )

    assert off.model is not None
    assert on.model is not None
    assert off.model.mla is None
    assert on.model.mla is not None
    assert (on.model.mla.q_lora_rank, on.model.mla.kv_lora_rank) == (1536, 512)
    assert on.model.moe is not None
    assert (on.model.moe.experts, on.model.moe.top_k, on.model.moe.expert_ffn_size) == (8, 2, 8192)
    assert sum(on.model.moe.layer_pattern) == 20


@pytest.mark.parametrize(
    ("text", "pattern"),
    [
        ("1", (1, 1, 1, 1)),
        ("2", (1, 0, 1, 0)),
        ("[0, 1, 1, 1]", (0, 1, 1, 1)),
        ("([0]*1+[1]*3)", (0, 1, 1, 1)),
        ("([1]+[0]*1)*2", (1, 0, 1, 0)),
    ],
)
def test_a_layer_pattern_is_read(text: str, pattern: tuple[int, ...]) -> None:
    assert layer_pattern(text, 4) == pattern


@pytest.mark.parametrize(
    "text",
    [
        "0",
        "-1",
        "[0, 1]",
        "[2]*4",
        "[[0]]*4",
        "__import__('os')",
        "[1]*10**9",
        "4**4",
        "x",
        "(",
        "[1]*99999999",
    ],
)
def test_what_is_no_layer_pattern_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        layer_pattern(text, 4)


@pytest.mark.parametrize(
    "changes",
    [
        {"is_hybrid_model": True},
        {"hybrid_layer_pattern": "M-M*"},
        {"num_experts": 8, "moe_layer_freq": "[0]"},
        {"hidden_size": None},
        {"num_layers": "24x"},
        {"swiglu": "Tru"},
        {"multi_latent_attention": True, "kv_lora_rank": None},
    ],
)
def test_a_model_that_is_uncertain_is_absent(changes: dict[str, object]) -> None:
    said = described(dump(**changes))

    assert said.model is None
    assert said.parallel.world_size == 4


def test_a_dump_that_lost_a_row_says_no_model() -> None:
    whole = dump()
    lost = whole.replace(next(line for line in whole.splitlines(keepends=True) if " swiglu " in line), "")

    assert described(lost).model is None


def test_two_dumps_at_once_are_not_mixed() -> None:
    first, second = (dump(hidden_size=size).splitlines(keepends=True) for size in (2048, 4096))
    mixed = "".join(line for pair in zip(first, second, strict=True) for line in pair)

    assert [said for said in records_of(mixed, JobDescription) if said.model] == []


def test_a_dump_inside_of_another_is_not_completed_by_its_rows() -> None:
    first, second = dump(z_option=5).splitlines(keepends=True), dump().splitlines(keepends=True)
    # The second one's head comes early; no row contradicts another.
    mixed = "".join([*first[:10], *second[:10], *first[10:], *second[10:]])

    assert records_of(mixed, JobDescription) == []


def test_a_row_that_two_blocks_at_once_have_is_nobodys() -> None:
    header, window, optimizer = timers({"forward-backward": (1, 2), "optimizer": (3, 4)}).splitlines(
        keepends=True
    )
    others = timers({"forward-backward": (5, 6), "optimizer": (7, 8)}).splitlines(keepends=True)
    text = iteration(10) + header + window + iteration(20) + others[0] + optimizer + "".join(others[1:])

    blocks = {block.step: set(block.phases) for block in records_of(text, StepPhases)}

    assert blocks == {10: {"forward-backward"}, 20: {"forward-backward"}}


def test_rows_of_long_names_have_no_dots() -> None:
    long = "inference_dynamic_batching_buffer_guaranteed_fraction"
    row_of_47 = "keep_fp8_transpose_cache_when_using_custom_fsdp"

    said = described(dump(**{long: 0.2, row_of_47: False}))

    assert said.arguments[long] == "0.2"
    assert said.arguments[row_of_47] == "False"


@pytest.mark.parametrize(
    ("changes", "precision"),
    [
        ({}, "bf16"),
        ({"bf16": False, "fp16": True}, "fp16"),
        ({"bf16": False}, "fp32"),
        ({"fp8": "hybrid"}, "fp8"),
        ({"fp8": "e4m3", "fp4": "e2m1"}, "fp4"),
        ({"bf16": "maybe"}, None),
    ],
)
def test_the_precision_is_the_narrowest_asked_for(changes: dict[str, object], precision: str | None) -> None:
    assert described(dump(**changes)).precision == precision


def test_recomputation_is_read() -> None:
    said = described(dump(recompute_granularity="full", recompute_num_layers=2))

    assert (said.recompute, said.recompute_layers) == (Recompute.FULL, 2)


@pytest.mark.parametrize(
    ("text", "convention"),
    [
        ("> Megatron-Core version .......... 0.11.0\n", "megatron-full"),
        ("> Megatron-Core version .......... 0.12.0\n", "megatron-causal"),
        (dump(), "megatron-full"),
        (dump(mtp_num_layers=None), "megatron-causal"),
        (iteration(5), None),
        (iteration(5, stamp="2026-05-01 10:00:00.123456"), "megatron-causal"),
    ],
)
def test_how_the_log_counts_flops_follows_from_evidence(text: str, convention: str | None) -> None:
    assert described(text).logged_flops_convention == convention


def test_sizes_of_the_one_line_start_survive_its_missing_separators() -> None:
    said = described(
        "using world size: 64, data-parallel size: 2, context-parallel size: 1, hierarchical context-parallel"
        " sizes: Nonetensor-model-parallel size: 4, encoder-tensor-model-parallel size: 0,"
        " pipeline-model-parallel size: 8, encoder-pipeline-model-parallel size: 0\n"
    ).parallel

    assert (said.world_size, said.dp, said.cp, said.tp, said.pp) == (64, 2, 1, 4, 8)


def test_memory_reports_run_together_are_distinguished() -> None:
    text = (
        "[Rank 9] (after 1 iterations) memory (MB) | allocated: 1.5 | max allocated: 2.0 | reserved: 3.0 |"
        " max reserved: 4.0[Rank 8] (after 1 iterations) memory (MB) | allocated: 5.0 | max allocated: 6.0\n"
    )

    nine, eight = records_of(text, MemoryReport)

    assert (nine.rank, nine.step, nine.allocated_bytes, nine.max_reserved_bytes) == (
        9,
        1,
        1.5 * 2**20,
        4 * 2**20,
    )
    assert (eight.rank, eight.max_allocated_bytes, eight.max_reserved_bytes) == (8, 6 * 2**20, None)


def test_straggler_power_in_milliwatts_is_reported_in_watts() -> None:
    text = (
        "INFO:megatron.core.utils:[2024-06-01 12:00:00] | MnRtt/Rnk: 3453.08ms/8 | MxRtt/Rnk: 3468.20ms/0 |"
        " MnPwr/Rnk: 601796.00W/8 | MxPwr/Rnk: 683801W/18 | MnUtl/Rnk: 97%/8 | MxEtpt/Rnk: 297.32TF/8\n"
    )

    (event,) = records_of(text, Event)

    assert event.kind is EventKind.STRAGGLER_REPORT
    assert event.values["power_min_w"] == 601.796
    assert (event.values["power_max_w"], event.values["power_max_rank"]) == (683.801, 18)
    assert event.values["forward_min_s"] == 3.45308
    assert event.values["utilization_min_ratio"] == 0.97
    assert event.values["throughput_max_flops_per_s"] == 297.32e12


def test_a_checkpoint_shows_how_long_it_took() -> None:
    text = (
        iteration(20)
        + timers(LEVEL_1)
        + "  successfully saved checkpoint from iteration      20 to /data [ t 1/1, p 1/1 ]\n"
        + timers({"save-checkpoint": (24895.0, 24895.5)})
    )

    (event,) = records_of(text, Event)

    assert (event.kind, event.step, event.duration_s) == (EventKind.CHECKPOINT, 20, 24.8955)


@pytest.mark.parametrize(
    ("by_torch", "profiled"), [(True, [8, 9, 10]), (False, [10, 11])], ids=["PyTorch's profiler", "CUDA's"]
)
def test_iterations_that_the_options_profile_are_marked(by_torch: bool, profiled: list[int]) -> None:
    options = {
        "profile": True,
        "profile_step_start": 9,
        "profile_step_end": 11,
        "use_pytorch_profiler": by_torch,
    }
    text = dump(**options, log_interval=1) + "".join(iteration(step) for step in range(1, 14))

    events = [event for event in records_of(text, Event) if event.kind is EventKind.PROFILE]

    assert [event.step for event in events] == profiled


def test_tokens_are_not_derived_for_a_line_of_another_job() -> None:
    text = dump(train_iters=100) + iteration(10)

    (step,) = records_of(text, TrainingStep)

    assert step.tokens_per_s is None

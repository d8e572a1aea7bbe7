"""Operations per token against the figures that Megatron-LM's and torchtitan's own functions gave."""

from __future__ import annotations

from dataclasses import replace

import pytest
from analysis.jobs import LLAMA3_8B, description

from perfd.analysis.flops.flops_conventions import (
    FlopsConvention,
    job_recompute_flops_per_token,
    recompute_flops_per_token,
    train_flops_per_token,
)
from perfd.analysis.flops.model_shape import parameter_counts, token_cost
from perfd.model import MlaShape, ModelShape, MoeShape, Recompute

GPT3_175B = ModelShape(
    layers=96,
    hidden_size=12288,
    ffn_size=49152,
    attention_heads=96,
    kv_heads=96,
    head_size=128,
    sequence_length=2048,
    vocab_size=51200,
)
MIXTRAL_8X7B = ModelShape(
    layers=32,
    hidden_size=4096,
    ffn_size=14336,
    attention_heads=32,
    kv_heads=8,
    head_size=128,
    sequence_length=4096,
    vocab_size=32000,
    gated_mlp=True,
    moe=MoeShape(experts=8, top_k=2, expert_ffn_size=14336, layer_pattern=(1,) * 32),
)
DEEPSEEK_V3 = ModelShape(
    layers=61,
    hidden_size=7168,
    ffn_size=18432,
    attention_heads=128,
    kv_heads=128,
    head_size=128,
    sequence_length=4096,
    vocab_size=129280,
    gated_mlp=True,
    moe=MoeShape(
        experts=256,
        top_k=8,
        expert_ffn_size=2048,
        shared_expert_ffn_size=2048,
        layer_pattern=(0,) * 3 + (1,) * 58,
    ),
    mla=MlaShape(q_lora_rank=1536, kv_lora_rank=512, qk_head_dim=128, qk_pos_emb_head_dim=64, v_head_dim=128),
    mtp_layers=1,
)


def test_llama3_8b_has_the_operations_that_each_megatron_version_prints():
    assert train_flops_per_token(LLAMA3_8B, FlopsConvention.MEGATRON) == pytest.approx(5.1470e10, rel=1e-4)
    assert train_flops_per_token(LLAMA3_8B, FlopsConvention.MEGATRON_FULL) == pytest.approx(
        5.7913e10, rel=1e-4
    )


def test_llama3_8b_by_palm_is_what_torchtitan_printed():
    # 339.16 TFLOP/s at 5856 tokens/s of one GPU, both rounded by the log.
    assert train_flops_per_token(LLAMA3_8B, FlopsConvention.PALM) == pytest.approx(339.16e12 / 5856, rel=2e-4)


@pytest.mark.parametrize(
    ("shape", "ratio"), [(LLAMA3_8B, 1.125), (GPT3_175B, 1.0137), (MIXTRAL_8X7B, 1.040)], ids=str
)
def test_older_megatron_counts_more_because_of_the_full_attention(shape: ModelShape, ratio: float):
    full = train_flops_per_token(shape, FlopsConvention.MEGATRON_FULL)
    assert full / train_flops_per_token(shape, FlopsConvention.MEGATRON) == pytest.approx(ratio, abs=5e-4)


def test_older_megatron_counts_deepseek_v3_about_five_times_over():
    full = train_flops_per_token(DEEPSEEK_V3, FlopsConvention.MEGATRON_FULL)
    assert 4.9 <= full / train_flops_per_token(DEEPSEEK_V3, FlopsConvention.MEGATRON) <= 5.4


def test_a_real_mixtral_log_of_core_0_6_is_reproduced():
    # Megatron-LM issue 756: global batch 128, 16 H100, 5361.6 ms, printed 243.6 TFLOP/s.
    shape = replace(MIXTRAL_8X7B, sequence_length=2048)
    per_step = train_flops_per_token(shape, FlopsConvention.MEGATRON_FULL) * 128 * 2048
    assert per_step / 5.3616 / 16 / 1e12 == pytest.approx(243.57, abs=0.005)


def test_six_n_leaves_attention_over_the_sequence_out():
    longer = replace(LLAMA3_8B, sequence_length=131072)
    assert train_flops_per_token(longer, FlopsConvention.SIX_N) == train_flops_per_token(
        LLAMA3_8B, FlopsConvention.SIX_N
    )


@pytest.mark.parametrize(
    ("shape", "untied", "total", "active"),
    [
        (LLAMA3_8B, True, 8.03e9, 8.03e9),
        (GPT3_175B, False, 174.6e9, 174.6e9),
        (MIXTRAL_8X7B, True, 46.7e9, 12.9e9),
        # 671 billion, of which 37 are active, and the layer for multi-token prediction.
        (DEEPSEEK_V3, True, 682.6e9, 38.1e9),
    ],
    ids=["llama3-8b", "gpt3", "mixtral", "deepseek-v3"],
)
def test_parameters_are_those_that_the_models_are_known_by(shape, untied, total, active):
    counts = parameter_counts(shape, untied_embeddings=untied)
    assert counts.total == pytest.approx(total, rel=3e-3)
    assert counts.active == pytest.approx(active, rel=3e-3)


def test_an_unknown_vocabulary_leaves_the_head_out_and_nothing_else():
    without = replace(LLAMA3_8B, vocab_size=None)
    for convention in FlopsConvention:
        head = 6 * LLAMA3_8B.hidden_size * 128256
        difference = train_flops_per_token(LLAMA3_8B, convention) - train_flops_per_token(without, convention)
        assert difference == pytest.approx(head)


def test_an_output_gate_is_one_more_matrix_of_the_queries_size():
    gated = replace(LLAMA3_8B, attention_output_gate=True)
    extra = token_cost(gated).attention_linear - token_cost(LLAMA3_8B).attention_linear
    assert extra == 32 * 4096 * 32 * 128


def test_latent_experts_work_in_the_latent_width_and_pay_for_two_projections():
    moe = MoeShape(experts=8, top_k=2, expert_ffn_size=100, layer_pattern=(1,), latent_size=16)
    shape = ModelShape(
        layers=1,
        hidden_size=64,
        ffn_size=256,
        attention_heads=4,
        kv_heads=4,
        head_size=16,
        sequence_length=8,
        moe=moe,
    )
    assert token_cost(shape).mlp == 2 * 100 * 2 * 16 + 2 * 64 * 16


def test_full_recomputation_repeats_the_forward_pass_of_the_layers_but_not_the_head():
    model = train_flops_per_token(LLAMA3_8B, FlopsConvention.SIX_N)
    head = 6 * 4096 * 128256
    again = recompute_flops_per_token(LLAMA3_8B, FlopsConvention.SIX_N, Recompute.FULL)
    assert again == pytest.approx((model - head) / 3)


def test_selective_recomputation_repeats_the_core_of_attention():
    # Scores and values over half of the sequence: 2 products of 2 operations by 4096 tokens each.
    again = recompute_flops_per_token(LLAMA3_8B, FlopsConvention.MEGATRON, Recompute.SELECTIVE)
    assert again == 32 * 2 * 2 * 32 * 128 * (8192 / 2)


def test_block_recomputation_counts_its_layers_in_every_chunk():
    job = description(LLAMA3_8B, pp=2, vp=2)
    some = replace(job, recompute=Recompute.FULL, recompute_layers=2, arguments={"recompute_method": "block"})
    all_layers = replace(some, arguments={"recompute_method": "uniform"})
    partial = job_recompute_flops_per_token(some, LLAMA3_8B, FlopsConvention.MEGATRON)
    full = job_recompute_flops_per_token(all_layers, LLAMA3_8B, FlopsConvention.MEGATRON)
    assert partial == pytest.approx(full * 8 / 32)


def test_labels_of_logs_name_the_conventions_that_perfd_computes():
    assert FlopsConvention.of_label("megatron-causal") is FlopsConvention.MEGATRON
    assert FlopsConvention.of_label("megatron-full") is FlopsConvention.MEGATRON_FULL
    assert FlopsConvention.of_label("torchtitan") is FlopsConvention.PALM
    assert FlopsConvention.of_label("someone's own") is None
    assert FlopsConvention.of_label(None) is None

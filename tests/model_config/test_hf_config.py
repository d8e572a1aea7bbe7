"""A model's shape from its `config.json`, held against the parameters that its authors publish.

Active parameters are here with the embedding, which the authors of gpt-oss (3.6e9) and DeepSeek-V2-Lite
(2.4e9) leave out.
"""

from __future__ import annotations

import json

import pytest
from perfd_collectors.model_config import ModelConfigError, model_shape

from perfd.analysis.flops.model_shape import parameter_counts

LLAMA3_8B = {
    "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32,
    "num_hidden_layers": 32, "num_key_value_heads": 8, "vocab_size": 128256,
}  # fmt: skip
QWEN25_7B = {
    "model_type": "qwen2", "hidden_size": 3584, "intermediate_size": 18944, "num_attention_heads": 28,
    "num_hidden_layers": 28, "num_key_value_heads": 4, "vocab_size": 152064,
}  # fmt: skip
GPT2 = {
    "model_type": "gpt2", "n_embd": 768, "n_head": 12, "n_layer": 12, "n_inner": None, "vocab_size": 50257,
}  # fmt: skip
OPT_6_7B = {
    "model_type": "opt", "hidden_size": 4096, "ffn_dim": 16384, "num_attention_heads": 32,
    "num_hidden_layers": 32, "vocab_size": 50272,
}  # fmt: skip
FALCON_7B = {
    "model_type": "falcon", "hidden_size": 4544, "num_attention_heads": 71, "num_hidden_layers": 32,
    "multi_query": True, "new_decoder_architecture": False, "vocab_size": 65024,
}  # fmt: skip
MIXTRAL_8X7B = {
    "model_type": "mixtral", "hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32,
    "num_hidden_layers": 32, "num_key_value_heads": 8, "num_local_experts": 8, "num_experts_per_tok": 2,
    "vocab_size": 32000,
}  # fmt: skip
QWEN3_30B_A3B = {
    "model_type": "qwen3_moe", "hidden_size": 2048, "intermediate_size": 6144, "moe_intermediate_size": 768,
    "num_attention_heads": 32, "num_hidden_layers": 48, "num_key_value_heads": 4, "head_dim": 128,
    "num_experts": 128, "num_experts_per_tok": 8, "decoder_sparse_step": 1, "mlp_only_layers": [],
    "vocab_size": 151936,
}  # fmt: skip
QWEN15_MOE_A27B = {
    "model_type": "qwen2_moe", "hidden_size": 2048, "intermediate_size": 5632, "moe_intermediate_size": 1408,
    "shared_expert_intermediate_size": 5632, "num_attention_heads": 16, "num_hidden_layers": 24,
    "num_key_value_heads": 16, "num_experts": 60, "num_experts_per_tok": 4, "decoder_sparse_step": 1,
    "vocab_size": 151936,
}  # fmt: skip
DEEPSEEK_V2_LITE = {
    "model_type": "deepseek_v2", "hidden_size": 2048, "intermediate_size": 10944,
    "moe_intermediate_size": 1408,
    "num_attention_heads": 16, "num_hidden_layers": 27, "num_key_value_heads": 16, "n_routed_experts": 64,
    "n_shared_experts": 2, "num_experts_per_tok": 6, "first_k_dense_replace": 1, "moe_layer_freq": 1,
    "q_lora_rank": None, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
    "v_head_dim": 128, "vocab_size": 102400,
}  # fmt: skip
DEEPSEEK_V3 = {
    "model_type": "deepseek_v3", "hidden_size": 7168, "intermediate_size": 18432,
    "moe_intermediate_size": 2048,
    "num_attention_heads": 128, "num_hidden_layers": 61, "num_key_value_heads": 128, "n_routed_experts": 256,
    "n_shared_experts": 1, "num_experts_per_tok": 8, "first_k_dense_replace": 3, "moe_layer_freq": 1,
    "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
    "v_head_dim": 128, "vocab_size": 129280, "num_nextn_predict_layers": 1,
}  # fmt: skip
GPT_OSS_20B = {
    "model_type": "gpt_oss", "hidden_size": 2880, "intermediate_size": 2880, "num_attention_heads": 64,
    "num_hidden_layers": 24, "num_key_value_heads": 8, "head_dim": 64, "num_local_experts": 32,
    "num_experts_per_tok": 4, "vocab_size": 201088,
}  # fmt: skip


def shape_of(config, sequence_length=4096):
    return model_shape(json.dumps(config).encode(), sequence_length=sequence_length)


@pytest.mark.parametrize(
    ("config", "total", "active", "tied"),
    [
        pytest.param(LLAMA3_8B, 8.03e9, 8.03e9, False, id="llama"),
        pytest.param(QWEN25_7B, 7.61e9, 7.61e9, False, id="qwen2"),
        pytest.param(GPT2, 124e6, 124e6, True, id="gpt2"),
        pytest.param(OPT_6_7B, 6.66e9, 6.66e9, True, id="opt"),
        pytest.param(FALCON_7B, 6.92e9, 6.92e9, True, id="falcon"),
        pytest.param(MIXTRAL_8X7B, 46.7e9, 12.9e9, False, id="mixtral"),
        pytest.param(QWEN3_30B_A3B, 30.5e9, 3.3e9, False, id="qwen3_moe"),
        pytest.param(QWEN15_MOE_A27B, 14.3e9, 2.7e9, False, id="qwen2_moe"),
        pytest.param(DEEPSEEK_V2_LITE, 15.7e9, 2.66e9, False, id="deepseek_v2"),
        pytest.param(DEEPSEEK_V3, 671e9, 37.5e9, False, id="deepseek_v3"),
        pytest.param(GPT_OSS_20B, 20.9e9, 4.2e9, False, id="gpt_oss"),
    ],
)
def test_the_parameters_are_those_that_are_published(config, total, active, tied):
    counts = parameter_counts(shape_of(config), untied_embeddings=not tied)
    assert counts.total == pytest.approx(total, rel=0.01)
    assert counts.active == pytest.approx(active, rel=0.02)


def test_the_sequence_is_the_jobs_and_not_the_models_longest():
    assert shape_of({**LLAMA3_8B, "max_position_embeddings": 131072}, 2048).sequence_length == 2048


def test_experts_are_in_every_second_layer_as_qwen_counts_them():
    shape = shape_of({**QWEN15_MOE_A27B, "num_hidden_layers": 4, "decoder_sparse_step": 2})
    assert shape.moe.layer_pattern == (0, 1, 0, 1)
    shape = shape_of({**QWEN15_MOE_A27B, "num_hidden_layers": 4, "mlp_only_layers": [3]})
    assert shape.moe.layer_pattern == (1, 1, 1, 0)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b"", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b"[1]", "not a JSON object"),
        (b'{"model_type": "t5"}', "type 't5'"),
        (b'{"model_type": {"a": 1}}', "type {'a': 1}"),
        (b'{"model_type": "llama"}', "lacks num_hidden_layers"),
        (json.dumps({**LLAMA3_8B, "num_hidden_layers": 0}).encode(), "num_hidden_layers is not a size: 0"),
        (json.dumps({**LLAMA3_8B, "num_hidden_layers": True}).encode(), "num_hidden_layers is not a size"),
        (json.dumps({**LLAMA3_8B, "vocab_size": 1e9}).encode(), "vocab_size is not a size"),
        (json.dumps({**LLAMA3_8B, "hidden_size": 2**31}).encode(), "hidden_size is not a size"),
        (json.dumps({**LLAMA3_8B, "num_hidden_layers": 10_001}).encode(), "num_hidden_layers is not a size"),
        (json.dumps({**QWEN3_30B_A3B, "mlp_only_layers": 3}).encode(), "which layers have experts"),
        (b" " * ((1 << 20) + 1), "at most"),
    ],
)
def test_a_file_that_describes_no_decoder_is_refused_with_a_reason(text, words):
    with pytest.raises(ModelConfigError, match=words.replace("{", "\\{").replace("}", "\\}")):
        model_shape(text, sequence_length=1024)

"""A decoder's shape from a Hugging Face `config.json`; the keys are those of transformers' classes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from perfd.errors import PerfdError
from perfd.model import MlaShape, ModelShape, MoeShape

MAX_BYTES = 1 << 20
"""Of a file; published ones have a few kilobytes."""
_MAX_SIZE = (1 << 31) - 1
"""A signed size of 32 bits."""
_MAX_LAYERS = 10_000
"""Bounds the pattern of layers; the deepest published decoders have some hundred."""
_GATED = frozenset(
    {
        "cohere",
        "cohere2",
        "deepseek_v2",
        "deepseek_v3",
        "gemma",
        "gemma2",
        "gemma3_text",
        "glm",
        "glm4",
        "glm4_moe",
        "gpt_oss",
        "granite",
        "granitemoe",
        "internlm2",
        "llama",
        "minicpm",
        "minicpm3",
        "ministral",
        "mistral",
        "mixtral",
        "olmo",
        "olmo2",
        "olmo3",
        "olmoe",
        "phi3",
        "phimoe",
        "qwen2",
        "qwen2_moe",
        "qwen3",
        "qwen3_moe",
        "seed_oss",
        "smollm3",
        "stablelm",
    }
)
"""Model types whose MLP has three matrices."""
_PLAIN = frozenset(
    {
        "bloom",
        "codegen",
        "falcon",
        "gpt2",
        "gpt_bigcode",
        "gpt_neo",
        "gpt_neox",
        "gptj",
        "mpt",
        "nemotron",
        "opt",
        "phi",
        "starcoder2",
    }
)
"""Model types whose MLP has two."""
_LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
_HIDDEN = ("hidden_size", "n_embd", "d_model")
_HEADS = ("num_attention_heads", "n_head", "n_heads", "num_heads")
_FFN = ("intermediate_size", "ffn_dim", "n_inner", "ffn_hidden_size")
_KV_HEADS = ("num_key_value_heads", "num_kv_heads")
_EXPERTS = ("n_routed_experts", "num_local_experts", "num_experts")


class ModelConfigError(PerfdError):
    """A file that does not describe a decoder whose operations perfd can count."""


def model_shape(text: bytes, *, sequence_length: int) -> ModelShape:
    """The shape of the model that a `config.json` describes; raises `ModelConfigError`."""
    config = _mapping(text)
    kind = config.get("model_type")
    if not isinstance(kind, str) or kind not in _GATED | _PLAIN:
        raise ModelConfigError(
            f"perfd does not count the operations of a model of type {_short(kind)};"
            " give them by hand: --flops-per-step."
        )
    layers = _size(config, _LAYERS, most=_MAX_LAYERS)
    hidden, heads = _size(config, _HIDDEN), _size(config, _HEADS)
    return ModelShape(
        layers=layers,
        hidden_size=hidden,
        ffn_size=_size(config, _FFN, default=4 * hidden),
        attention_heads=heads,
        kv_heads=_kv_heads(config, heads),
        head_size=_size(config, ("head_dim",), default=hidden // heads),
        sequence_length=sequence_length,
        vocab_size=_size(config, ("vocab_size",)),
        gated_mlp=kind in _GATED,
        moe=_moe(config, layers),
        mla=_mla(config),
    )


def _mapping(text: bytes) -> Mapping[str, Any]:
    if len(text) > MAX_BYTES:
        raise ModelConfigError(f"A config.json has at most {MAX_BYTES} bytes.")
    try:
        config = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ModelConfigError("It is not JSON.") from error
    if not isinstance(config, dict):
        raise ModelConfigError("It is not a JSON object.")
    return config


def _size(
    config: Mapping[str, Any], names: tuple[str, ...], *, default: int | None = None, most: int = _MAX_SIZE
) -> int:
    """The first of these keys that is set; raises `ModelConfigError` for none, or one that is not a size."""
    name, value = next(
        ((name, config[name]) for name in names if config.get(name) is not None), ("", default)
    )
    if value is None:
        raise ModelConfigError(f"It lacks {names[0]}.")
    if type(value) is not int or not 0 < value <= most:
        raise ModelConfigError(f"{name} is not a size: {_short(value)}.")
    return value


def _kv_heads(config: Mapping[str, Any], heads: int) -> int:
    if config.get("multi_query") is True and not config.get("new_decoder_architecture"):
        return 1
    return _size(config, _KV_HEADS, default=heads)


def _moe(config: Mapping[str, Any], layers: int) -> MoeShape | None:
    if all(config.get(name) is None for name in _EXPERTS):
        return None
    expert_ffn = _size(config, ("moe_intermediate_size", "intermediate_size"))
    shared = 0
    if config.get("shared_expert_intermediate_size"):
        shared = _size(config, ("shared_expert_intermediate_size",))
    elif config.get("n_shared_experts"):
        shared = _size(config, ("n_shared_experts",)) * expert_ffn
    return MoeShape(
        experts=_size(config, _EXPERTS),
        top_k=_size(config, ("num_experts_per_tok", "experts_per_token")),
        expert_ffn_size=expert_ffn,
        shared_expert_ffn_size=shared,
        layer_pattern=_layer_pattern(config, layers),
    )


def _layer_pattern(config: Mapping[str, Any], layers: int) -> tuple[int, ...]:
    """1 for each layer with experts."""
    dense_first = config.get("first_k_dense_replace") or 0
    dense = config.get("mlp_only_layers") or ()
    every = _size(config, ("decoder_sparse_step", "moe_layer_freq"), default=1)
    if type(dense_first) is not int or not isinstance(dense, list | tuple):
        raise ModelConfigError("It does not say which layers have experts.")
    # Qwen counts the sparse step from the layer's number plus one, DeepSeek the frequency from the number.
    shift = 1 if "decoder_sparse_step" in config else 0
    return tuple(
        int(layer >= dense_first and layer not in dense and (layer + shift) % every == 0)
        for layer in range(layers)
    )


def _mla(config: Mapping[str, Any]) -> MlaShape | None:
    if config.get("kv_lora_rank") is None:
        return None
    return MlaShape(
        q_lora_rank=_size(config, ("q_lora_rank",)) if config.get("q_lora_rank") else None,
        kv_lora_rank=_size(config, ("kv_lora_rank",)),
        qk_head_dim=_size(config, ("qk_nope_head_dim",)),
        qk_pos_emb_head_dim=_size(config, ("qk_rope_head_dim",)),
        v_head_dim=_size(config, ("v_head_dim",)),
    )


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:40]}..."

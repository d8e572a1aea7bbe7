"""The model that a server runs: its shape, and the bytes of its weights and KV cache.

From Hugging Face's `config.json` and the server's own arguments.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from perfd.model import MlaShape, ModelShape, MoeShape

_BITS_BY_DTYPE = {
    "float32": 32, "float": 32, "bfloat16": 16, "bf16": 16, "float16": 16, "half": 16, "fp16": 16,
    "fp8": 8, "fp8_e4m3": 8, "fp8_e5m2": 8, "float8_e4m3fn": 8, "float8_e5m2": 8, "int8": 8, "fp4": 4,
    "nvfp4": 4, "mxfp4": 4, "int4": 4,
}  # fmt: skip
_BITS_BY_METHOD = {
    "fp8": 8.0, "w8a8_fp8": 8.0, "w8a8_int8": 8.0, "fbgemm_fp8": 8.0, "modelopt": 8.0, "modelopt_fp8": 8.0,
    "awq": 4.0, "awq_marlin": 4.0, "gptq": 4.0, "gptq_marlin": 4.0, "marlin": 4.0,
    # A block of 32 (mxfp4) or 16 (nvfp4) values shares a scale of 8 bits.
    "mxfp4": 4.25, "modelopt_fp4": 4.5, "nvfp4": 4.5,
}  # fmt: skip
_COMPUTE_IN_FP8 = frozenset({"fp8", "w8a8_fp8", "fbgemm_fp8", "modelopt", "modelopt_fp8"})
_COMPUTE_IN_FP4 = frozenset({"modelopt_fp4", "nvfp4"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """What the theory needs to know of a model."""

    shape: ModelShape
    weight_bits: float
    """Of the layers' matrices; quantization leaves embedding and head alone."""
    head_bits: float
    kv_bits: float
    precision: str
    """The compute type that names the peak: bf16, fp16, fp8 or fp4."""
    window_layers: int = 0
    """Layers that look back `window_tokens` only."""
    window_tokens: int | None = None

    @property
    def kv_bytes_per_token(self) -> float:
        """Of one token over all layers, before sharding."""
        return self.shape.layers * self.kv_elements_per_layer * self.kv_bits / 8

    @property
    def kv_elements_per_layer(self) -> float:
        """Elements that a layer keeps of a token: keys and values, or MLA's latent and rotary parts."""
        mla = self.shape.mla
        if mla is not None:
            return mla.kv_lora_rank + mla.qk_pos_emb_head_dim
        return 2 * self.shape.kv_heads * self.shape.head_size


def served_model(config: Mapping[str, Any], arguments: Mapping[str, Any] | None = None) -> ServedModel | None:
    """Read a `config.json`, or None when it lacks a size.

    `arguments` of the server (`quantization`, `dtype`, `kv_cache_dtype`) win over what the checkpoint says.
    """
    text = config.get("text_config")
    inner = {**config, **text} if isinstance(text, Mapping) else config
    shape = _shape(inner)
    if shape is None:
        return None
    options = arguments or {}
    dtype = _word(options.get("dtype")) or _word(inner.get("torch_dtype") or inner.get("dtype")) or "bfloat16"
    bits = float(_BITS_BY_DTYPE.get(dtype, 16))
    method, weight_bits = _quantisation(inner, options, bits)
    kv_dtype = _word(options.get("kv_cache_dtype"))
    window_layers, window = _window(inner, shape.layers)
    return ServedModel(
        shape=shape,
        weight_bits=weight_bits,
        head_bits=bits,
        kv_bits=float(_BITS_BY_DTYPE.get(kv_dtype or "", bits)),
        precision=_precision(method, dtype),
        window_layers=window_layers,
        window_tokens=window,
    )


def _shape(config: Mapping[str, Any]) -> ModelShape | None:
    layers, hidden = (
        first_size(config, "num_hidden_layers", "n_layer"),
        first_size(config, "hidden_size", "n_embd"),
    )
    heads = first_size(config, "num_attention_heads", "n_head")
    if not (layers and hidden and heads):
        return None
    ffn = first_size(config, "intermediate_size", "ffn_dim", "n_inner") or 4 * hidden
    return ModelShape(
        layers=layers,
        hidden_size=hidden,
        ffn_size=ffn,
        attention_heads=heads,
        kv_heads=first_size(config, "num_key_value_heads", "num_kv_heads") or heads,
        head_size=first_size(config, "head_dim") or hidden // heads,
        sequence_length=first_size(config, "max_position_embeddings", "n_positions") or 0,
        vocab_size=first_size(config, "vocab_size"),
        gated_mlp=_word(config.get("hidden_act")) in {"silu", "swiglu", "gelu_pytorch_tanh", "swish"},
        moe=_moe(config, layers, ffn),
        mla=_mla(config),
    )


def _moe(config: Mapping[str, Any], layers: int, ffn: int) -> MoeShape | None:
    experts = first_size(config, "n_routed_experts", "num_local_experts", "num_experts")
    top_k = first_size(config, "num_experts_per_tok", "num_experts_per_token", "experts_per_token")
    if not experts or not top_k or experts < 2:
        return None
    size = first_size(config, "moe_intermediate_size") or ffn
    shared = first_size(config, "shared_expert_intermediate_size") or (
        (first_size(config, "n_shared_experts") or 0) * size
    )
    dense_first = first_size(config, "first_k_dense_replace") or 0
    every = first_size(config, "moe_layer_freq", "decoder_sparse_step") or 1
    return MoeShape(
        experts=experts,
        top_k=top_k,
        expert_ffn_size=size,
        shared_expert_ffn_size=shared,
        layer_pattern=tuple(int(i >= dense_first and (i + 1) % every == 0) for i in range(layers)),
    )


def _mla(config: Mapping[str, Any]) -> MlaShape | None:
    rank, rope = first_size(config, "kv_lora_rank"), first_size(config, "qk_rope_head_dim")
    nope, value = first_size(config, "qk_nope_head_dim"), first_size(config, "v_head_dim")
    if not (rank and rope and nope and value):
        return None
    return MlaShape(
        q_lora_rank=first_size(config, "q_lora_rank"),
        kv_lora_rank=rank,
        qk_head_dim=nope,
        qk_pos_emb_head_dim=rope,
        v_head_dim=value,
    )


def _window(config: Mapping[str, Any], layers: int) -> tuple[int, int | None]:
    window = first_size(config, "sliding_window")
    kinds = config.get("layer_types")
    if not window or config.get("use_sliding_window") is False:
        return 0, None
    if isinstance(kinds, list):
        return sum(1 for kind in kinds if kind == "sliding_attention"), window
    return layers, window


def _quantisation(
    config: Mapping[str, Any], options: Mapping[str, Any], bits: float
) -> tuple[str | None, float]:
    quantised = config.get("quantization_config") or config.get("compression_config") or {}
    if not isinstance(quantised, Mapping):
        quantised = {}
    method = _word(options.get("quantization")) or _word(quantised.get("quant_method"))
    algorithm = _word(quantised.get("quant_algo"))
    if method == "modelopt" and algorithm:
        method = f"modelopt_{'fp4' if 'fp4' in algorithm else 'fp8'}"
    if method == "compressed-tensors":
        return _compressed(quantised, bits)
    if method is None:
        return None, bits
    stated = quantised.get("bits", quantised.get("w_bit"))
    if isinstance(stated, int | float) and not isinstance(stated, bool):
        return method, float(stated)
    if quantised.get("load_in_4bit"):
        return method, 4.0
    return method, _BITS_BY_METHOD.get(method, bits)


def _compressed(quantised: Mapping[str, Any], bits: float) -> tuple[str | None, float]:
    groups = quantised.get("config_groups")
    found = [group for group in groups.values() if isinstance(group, Mapping)] if groups else []
    for group in found:
        weights, inputs = group.get("weights"), group.get("input_activations")
        if isinstance(weights, Mapping) and isinstance(weights.get("num_bits"), int):
            wide = weights["num_bits"] == 8 and _word(weights.get("type")) == "float" and inputs
            return ("fp8" if wide else None), float(weights["num_bits"])
    return None, bits


def _precision(method: str | None, dtype: str) -> str:
    if method in _COMPUTE_IN_FP8:
        return "fp8"
    if method in _COMPUTE_IN_FP4:
        return "fp4"
    return "fp16" if dtype in {"float16", "half", "fp16"} else "bf16"


def first_size(config: Mapping[str, Any], *names: str) -> int | None:
    """The first of the named values that is a whole number above 0; None without one."""
    for name in names:
        value = config.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
    return None


def _word(value: object) -> str | None:
    if not isinstance(value, str) or value.lower() in {"", "auto", "none"}:
        return None
    return value.lower().removeprefix("torch.")

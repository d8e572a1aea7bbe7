"""Floating-point operations of a training step, by the convention that a user chose."""

from __future__ import annotations

from enum import StrEnum

from perfd.analysis.flops.model_shape import parameter_counts, token_cost
from perfd.model import JobDescription, ModelShape, Recompute

_FORWARD = 2
"""A multiply-accumulate is two operations."""
_TRAINING = 6
"""Forward once, backward twice: by the inputs and by the weights."""


class FlopsConvention(StrEnum):
    """Which operations count as the model's; docs/analysis-mfu.md compares them on known models."""

    MEGATRON = "megatron"
    """Megatron-LM core 0.12 and later: attention halved for the causal mask, head counted."""
    MEGATRON_FULL = "megatron-full"
    """Megatron-LM core 0.6 to 0.11: full attention, no MLA, no layer pattern, no multi-token prediction."""
    PALM = "palm"
    """PaLM (Chowdhery et al. 2022, appendix B), as torchtitan counts: 6N and full attention."""
    SIX_N = "6n"
    """Six operations a parameter and token; attention over the sequence is left out."""

    @classmethod
    def of_label(cls, label: str | None) -> FlopsConvention | None:
        """The convention that a training log's label means, or None for one that perfd cannot compute."""
        aliases = {"megatron-causal": cls.MEGATRON, "torchtitan": cls.PALM}
        if label in aliases:
            return aliases[label]
        return next((convention for convention in cls if convention.value == label), None)


def train_flops_per_token(shape: ModelShape, convention: FlopsConvention) -> float:
    """Forward and backward operations of one token, without recomputation."""
    if convention is FlopsConvention.MEGATRON_FULL:
        return _megatron_full(shape)
    cost = token_cost(shape)
    if convention is FlopsConvention.MEGATRON:
        matrices = cost.mlp + cost.attention_linear + cost.mtp + cost.head
        return _TRAINING * (matrices + cost.attention_core / 2)
    matmul = parameter_counts(shape).matmul
    attention = cost.attention_core if convention is FlopsConvention.PALM else 0.0
    return _TRAINING * (matmul + attention)


def recompute_flops_per_token(
    shape: ModelShape,
    convention: FlopsConvention,
    recompute: Recompute,
    *,
    layers: int | None = None,
) -> float:
    """Forward operations of one token that the backward pass does again.

    Full recomputation repeats the layers (the head is not repeated), selective
    recomputation the core of attention only (Korthikanti et al. 2022). With
    `layers` only so many layers of the model do it.
    """
    cost = token_cost(shape)
    causal = convention is FlopsConvention.MEGATRON
    core = cost.attention_core / 2 if causal else cost.attention_core
    if convention is FlopsConvention.SIX_N:
        core = 0.0
    again = {
        Recompute.NONE: 0.0,
        Recompute.SELECTIVE: core,
        Recompute.FULL: cost.layers - cost.attention_core + core,
    }[recompute]
    part = 1.0 if layers is None else min(1.0, layers / shape.layers)
    return _FORWARD * again * part


def job_recompute_flops_per_token(
    description: JobDescription, shape: ModelShape, convention: FlopsConvention
) -> float:
    """What a job recomputes for one token by its own description; an unknown choice counts as none.

    Megatron's `--recompute-num-layers` is per model chunk with `--recompute-method
    block`, and the size of groups, all of which recompute, with `uniform`.
    """
    recompute = description.recompute or Recompute.NONE
    by_block = recompute is Recompute.FULL and description.arguments.get("recompute_method") == "block"
    layers = None
    if by_block and description.recompute_layers:
        parallel = description.parallel
        layers = description.recompute_layers * (parallel.pp or 1) * (parallel.vp or 1)
    return recompute_flops_per_token(shape, convention, recompute, layers=layers)


def _megatron_full(shape: ModelShape) -> float:
    hidden, layers = shape.hidden_size, shape.layers
    heads, kv_heads = shape.attention_heads, shape.kv_heads
    query_share = shape.head_size * heads / hidden
    gated = 1.5 if shape.gated_mlp else 1.0
    attention = (1 + kv_heads / heads + shape.sequence_length / hidden) * query_share
    top_k = shape.moe.top_k if shape.moe else 1
    shared = shape.moe.shared_expert_ffn_size if shape.moe else 0
    mlp = (shape.ffn_size * top_k + shared) / hidden * gated
    head = (shape.vocab_size or 0) / (2 * layers * hidden)
    return 2 * _TRAINING * layers * hidden**2 * (attention + mlp + head)

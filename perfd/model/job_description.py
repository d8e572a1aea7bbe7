"""A job's parallel layout, model and configuration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelLayout:
    """A job's parallel layout: group sizes per dimension, 1 for unused dimensions."""

    world_size: int | None = None
    tp: int | None = None
    pp: int | None = None
    dp: int | None = None
    cp: int | None = None
    ep: int | None = None
    vp: int | None = None
    """Model chunks per pipeline stage (interleaved schedule); 1 without interleaving."""
    micro_batch_size: int | None = None
    global_batch_size: int | None = None

    @property
    def micro_batches(self) -> int | None:
        """Micro-batches per step and pipeline; None when a size is unknown."""
        if not (self.global_batch_size and self.micro_batch_size and self.dp):
            return None
        return self.global_batch_size // (self.micro_batch_size * self.dp) or None


@dataclass(frozen=True, slots=True, kw_only=True)
class MlaShape:
    """Multi-head latent attention (DeepSeek-V2): ranks and head sizes in elements."""

    q_lora_rank: int | None
    kv_lora_rank: int
    qk_head_dim: int
    qk_pos_emb_head_dim: int
    v_head_dim: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MoeShape:
    """Mixture of experts: sizes in elements; `layer_pattern` has 1 for each expert layer."""

    experts: int
    top_k: int
    expert_ffn_size: int
    shared_expert_ffn_size: int = 0
    latent_size: int | None = None
    layer_pattern: Sequence[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """A transformer's shape, sufficient to count its FLOPs."""

    layers: int
    hidden_size: int
    ffn_size: int
    attention_heads: int
    kv_heads: int
    """Key/value heads: equal to `attention_heads` without grouped-query attention."""
    head_size: int
    sequence_length: int
    vocab_size: int | None = None
    """Padded vocabulary size; when unknown, the output layer's FLOPs are not counted."""
    gated_mlp: bool = False
    """SwiGLU and similar: three matrices in the MLP instead of two."""
    attention_output_gate: bool = False
    moe: MoeShape | None = None
    mla: MlaShape | None = None
    mtp_layers: int = 0


class Recompute(StrEnum):
    """Which forward work is recomputed in the backward pass."""

    NONE = "none"
    SELECTIVE = "selective"
    FULL = "full"


class ModelSource(StrEnum):
    """Where a model's shape comes from; unset for the job's own log, whose word wins."""

    CONFIG = "config"
    """A `config.json` that the operator named."""
    ARGUMENTS = "arguments"
    """A `config.json` that the arguments of the job's processes name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobDescription:
    """A job's configuration as printed at its start; unknown values are `None`."""

    job: str
    framework: str
    """Empty if unknown."""
    framework_version: str | None = None
    model: ModelShape | None = None
    model_source: ModelSource | None = None
    parallel: ParallelLayout = field(default_factory=ParallelLayout)
    precision: str | None = None
    """The compute data type, which selects the peak: `bf16`, `fp16`, `fp32`, `fp8`, `fp4`."""
    recompute: Recompute | None = None
    recompute_layers: int | None = None
    train_steps: int | None = None
    log_interval_steps: int | None = None
    parameters: float | None = None
    logged_flops_convention: str | None = None
    """The convention of FLOP/s in the job's own log: `megatron-causal`, `megatron-full`, ..."""
    tokens_per_step: float | None = None
    """Of all ranks together, as the operator says."""
    flops_per_step: float | None = None
    """Forward and backward, of all GPUs together, as the operator says."""
    hlo_flops_per_step: float | None = None
    """Of all GPUs together, with recomputation, counted in the job's largest module of dumped HLO."""
    hlo_precision: str | None = None
    """The data type with the most of these FLOPs, as in `precision`; `tf32` for f32 computed as TF32."""
    wandb_run: str | None = None
    """Of Weights & Biases: `https://HOST/ENTITY/PROJECT/runs/ID` as its client prints it, or what is known of
    `ENTITY/PROJECT/runs/ID`."""
    arguments: Mapping[str, str] = field(default_factory=dict)
    """All options as printed by the job."""
    software: Mapping[str, str] = field(default_factory=dict)
    """Versions by name, such as `PyTorch`, `CUDA runtime`, `NCCL` and `NVIDIA driver`; several are joined by
    commas where nodes differ."""

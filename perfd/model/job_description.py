"""What a job is: its layout over ranks, its model, and what it said of itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelLayout:
    """How a job is spread over ranks: sizes of the groups, 1 where a dimension is unused."""

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
        """Micro-batches per step and pipeline, or None when a size is unknown."""
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
    """A transformer's shape, enough to count its floating-point operations."""

    layers: int
    hidden_size: int
    ffn_size: int
    attention_heads: int
    kv_heads: int
    """Key/value heads: equal to `attention_heads` without grouped-query attention."""
    head_size: int
    sequence_length: int
    vocab_size: int | None = None
    """Padded vocabulary; the head's matrix product is left out when it is unknown."""
    gated_mlp: bool = False
    """SwiGLU and alike: three matrices in the MLP instead of two."""
    attention_output_gate: bool = False
    moe: MoeShape | None = None
    mla: MlaShape | None = None
    mtp_layers: int = 0


class Recompute(StrEnum):
    """Which forward work the backward pass does again."""

    NONE = "none"
    SELECTIVE = "selective"
    FULL = "full"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobDescription:
    """What a job said about itself at its start; `None` where it said nothing."""

    job: str
    framework: str
    framework_version: str | None = None
    model: ModelShape | None = None
    parallel: ParallelLayout = field(default_factory=ParallelLayout)
    precision: str | None = None
    """The compute type that names the peak: `bf16`, `fp16`, `fp32`, `fp8`, `fp4`."""
    recompute: Recompute | None = None
    recompute_layers: int | None = None
    train_steps: int | None = None
    log_interval_steps: int | None = None
    parameters: float | None = None
    logged_flops_convention: str | None = None
    """The convention of the FLOP/s in the job's own log: `megatron-causal`, `megatron-full`, ..."""
    arguments: Mapping[str, str] = field(default_factory=dict)
    """Options of the job as it printed them, those that perfd does not interpret too."""

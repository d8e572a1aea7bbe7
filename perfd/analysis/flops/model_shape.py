"""What one token costs in a transformer: multiply-accumulates and parameters, by part.

One multiply-accumulate of a weight matrix per token is one parameter that the token
uses, so the same terms count both. The closed form is that of Megatron-LM
(`num_floating_point_operations`, core 0.12 and later).
"""

from __future__ import annotations

from dataclasses import dataclass

from perfd.model import ModelShape, MoeShape


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenCost:
    """Multiply-accumulates of one token's forward pass, by part of the model."""

    mlp: float
    attention_linear: float
    attention_core: float
    """Scores and their product with the values, over the whole sequence (no causal discount)."""
    mtp: float
    """What multi-token prediction adds beside its layers and heads: norms and projection."""
    head: float

    @property
    def layers(self) -> float:
        """All but the output heads, without a causal discount."""
        return self.mlp + self.attention_linear + self.attention_core + self.mtp


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterCounts:
    """Parameters in the weight matrices; biases, norms and learned positions (under 1%) are left out."""

    total: float
    """All of them, the embedding counted once when it is tied to the head."""
    active: float
    """Those that one token uses, the embedding's rows included."""
    matmul: float
    """Those that one token multiplies with: experts chosen and head included, embedding lookup not."""


def token_cost(shape: ModelShape) -> TokenCost:
    """The cost of one token, in multiply-accumulates of the forward pass."""
    dense_layers, expert_layers = _layer_kinds(shape)
    matrices = _mlp_matrices(shape)
    mlp: float = shape.hidden_size * matrices * shape.ffn_size * dense_layers
    if shape.moe is not None:
        mlp += expert_layers * _active_expert_layer(shape, shape.moe)
    attended_layers = shape.layers + shape.mtp_layers
    hidden = shape.hidden_size
    return TokenCost(
        mlp=float(mlp),
        attention_linear=float(attended_layers * _attention_linear(shape)),
        attention_core=float(attended_layers * _attention_core(shape)),
        mtp=float(shape.mtp_layers * (3 * hidden + 2 * hidden**2)),
        head=float(hidden * (shape.vocab_size or 0) * (shape.mtp_layers + 1)),
    )


def parameter_counts(shape: ModelShape, *, untied_embeddings: bool = False) -> ParameterCounts:
    """Count the parameters; an unknown vocabulary counts as none, as in the cost of a token."""
    cost = token_cost(shape)
    matmul = cost.mlp + cost.attention_linear + cost.mtp + cost.head
    embedding = shape.hidden_size * (shape.vocab_size or 0)
    # The heads of multi-token prediction share the weights of the main head.
    once = matmul - embedding * shape.mtp_layers + (embedding if untied_embeddings else 0)
    resting = 0.0
    if shape.moe is not None:
        _, expert_layers = _layer_kinds(shape)
        unused = shape.moe.experts - shape.moe.top_k
        router = shape.hidden_size * shape.moe.experts
        resting = expert_layers * (unused * _one_expert(shape, shape.moe) + router)
    return ParameterCounts(total=once + resting, active=once, matmul=matmul)


def _layer_kinds(shape: ModelShape) -> tuple[int, int]:
    """Dense and expert layers; the layers of multi-token prediction are of the last layer's kind."""
    if shape.moe is None:
        return shape.layers + shape.mtp_layers, 0
    pattern = shape.moe.layer_pattern
    experts = sum(1 for kind in pattern if kind)
    dense = shape.layers - experts
    if pattern and pattern[-1]:
        return dense, experts + shape.mtp_layers
    return dense + shape.mtp_layers, experts


def _mlp_matrices(shape: ModelShape) -> int:
    return 3 if shape.gated_mlp else 2


def _one_expert(shape: ModelShape, moe: MoeShape) -> float:
    width = moe.latent_size or shape.hidden_size
    return float(width * _mlp_matrices(shape) * moe.expert_ffn_size)


def _active_expert_layer(shape: ModelShape, moe: MoeShape) -> float:
    latent = 2 * shape.hidden_size * moe.latent_size if moe.latent_size else 0
    shared = shape.hidden_size * _mlp_matrices(shape) * moe.shared_expert_ffn_size
    return moe.top_k * _one_expert(shape, moe) + latent + shared


def _attention_linear(shape: ModelShape) -> float:
    hidden, heads = shape.hidden_size, shape.attention_heads
    mla = shape.mla
    if mla is None:
        width = shape.head_size * heads
        gate = hidden * width if shape.attention_output_gate else 0
        return hidden * shape.head_size * (heads + 2 * shape.kv_heads) + gate + width * hidden
    query_head = mla.qk_head_dim + mla.qk_pos_emb_head_dim
    if mla.q_lora_rank:
        query = mla.q_lora_rank * (hidden + heads * query_head + 1)
    else:
        query = hidden * heads * query_head
    key_value = mla.kv_lora_rank * (hidden + heads * (mla.qk_head_dim + mla.v_head_dim) + 1)
    return query + key_value + hidden * mla.qk_pos_emb_head_dim + heads * mla.v_head_dim * hidden


def _attention_core(shape: ModelShape) -> float:
    if shape.mla is None:
        return 2.0 * shape.sequence_length * shape.attention_heads * shape.head_size
    head = shape.mla.qk_head_dim + shape.mla.qk_pos_emb_head_dim + shape.mla.v_head_dim
    return float(shape.sequence_length * shape.attention_heads * head)

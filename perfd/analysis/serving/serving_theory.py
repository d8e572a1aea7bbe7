"""What the hardware allows a server at best, from the model's shape: no step can be faster.

A decode step of a batch reads all weights once and the KV cache of each sequence, and computes
2 FLOPs a parameter and token; which of the two takes longer bounds it (roofline: Williams et al. 2009;
for transformer inference: Pope et al. 2022, arXiv:2211.05102, section 2). Prefill computes.

Left out on purpose, since the result is a floor: activations, latency of kernels and of small
all-reduces (5 to 15 µs each on NVLink), sampling and the scheduler.
"""

from __future__ import annotations

from dataclasses import dataclass

from perfd.analysis.flops.gpu_peak_lookup import GpuPeak
from perfd.analysis.serving.served_model import ServedModel
from perfd.model import ModelShape


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingLayout:
    """How a model is spread over GPUs: a replica has `tp * pp` of them.

    With attention data parallelism (SGLang: `--enable-dp-attention`) `dp` splits the attention of one group
    of `tp` GPUs instead.
    """

    tp: int = 1
    pp: int = 1
    dp: int = 1
    attention_dp: bool = False

    @property
    def gpus(self) -> int:
        """All of them."""
        return self.tp * self.pp * (1 if self.attention_dp else self.dp)

    @property
    def attention_tp(self) -> int:
        """GPUs that share the attention of one sequence."""
        return max(1, self.tp // self.dp) if self.attention_dp else self.tp


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeStep:
    """One decode step at a batch and context, seconds for one token of each sequence."""

    batch: float
    context_tokens: float
    weights_s: float
    kv_s: float
    compute_s: float
    all_reduce_s: float | None
    """None when the speed of the links is unknown."""

    @property
    def total_s(self) -> float:
        """Reading and computing overlap; communication does not overlap with either."""
        return max(self.weights_s + self.kv_s, self.compute_s) + (self.all_reduce_s or 0.0)

    @property
    def kv_ratio(self) -> float:
        """Share of the step that reads the KV cache."""
        return self.kv_s / self.total_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Theory:
    """The hardware's limits for one model on one layout."""

    model: ServedModel
    layout: ServingLayout
    gpu: GpuPeak
    bandwidth_bytes_per_s: float
    """Of one GPU."""
    flops_per_s: float
    """Dense peak of one GPU at the model's compute precision."""

    def decode_step(self, batch: float, context_tokens: float) -> DecodeStep:
        """A step of `batch` sequences on one replica, each with `context_tokens` in the cache."""
        tp = self.layout.tp
        shape = self.model.shape
        compute = decode_flops(shape, context_tokens) * batch / tp / self.flops_per_s
        return DecodeStep(
            batch=batch,
            context_tokens=context_tokens,
            weights_s=self._weights_per_gpu_bytes(batch) / self.bandwidth_bytes_per_s,
            kv_s=self.kv_read_bytes(batch, context_tokens) / self.bandwidth_bytes_per_s,
            compute_s=compute,
            all_reduce_s=self._all_reduce_s(batch),
        )

    @property
    def tpot_floor_s(self) -> float:
        """Time per token of a lone sequence with a short context: reading the weights."""
        return self.decode_step(1, 0).total_s

    def prefill_s(self, prompt_tokens: float) -> float:
        """Time to compute a prompt alone, and at least to read the weights once."""
        flops = prefill_flops(self.model.shape, prompt_tokens)
        reading = self._weights_per_gpu_bytes(prompt_tokens) / self.bandwidth_bytes_per_s
        # Stages of a pipeline compute one after the other for one prompt, each with its tp GPUs.
        return max(flops / (self.layout.tp * self.flops_per_s), reading)

    @property
    def critical_batch(self) -> float:
        """Tokens per step at which computing takes as long as reading the weights; below it they are free."""
        reading = self._weights_per_gpu_bytes(None) / self.bandwidth_bytes_per_s
        computing = decode_flops(self.model.shape, 0) / self.layout.tp / self.flops_per_s
        return reading / computing

    def kv_read_bytes(self, batch: float, context_tokens: float) -> float:
        """KV cache that one GPU reads in a step, over all stages that it has or waits for."""
        model = self.model
        full = model.shape.layers - model.window_layers
        tokens = full * context_tokens
        if model.window_layers:
            tokens += model.window_layers * min(context_tokens, model.window_tokens or context_tokens)
        per_replica = batch * tokens * model.kv_elements_per_layer * model.kv_bits / 8
        if self.layout.attention_dp:
            per_replica /= self.layout.dp
        # MLA's latent vector is the same for all heads, so each GPU holds it; heads are split otherwise.
        split = 1 if model.shape.mla else min(self.layout.attention_tp, model.shape.kv_heads)
        return per_replica / split

    def memory_bandwidth_use_ratio(self, step: DecodeStep, tpot_s: float) -> float:
        """MBU: bytes that a step must read over what the memory could deliver in the time it took."""
        return (step.weights_s + step.kv_s) / tpot_s

    def prefill_mfu_ratio(self, prompt_tokens_per_s: float, prompt_tokens: float) -> float:
        """MFU of prefill over all time: FLOPs of prompts of that length over the peak of all GPUs."""
        per_token = prefill_flops(self.model.shape, prompt_tokens) / prompt_tokens
        return prompt_tokens_per_s * per_token / (self.layout.gpus * self.flops_per_s)

    def _weights_per_gpu_bytes(self, batch: float | None) -> float:
        shape = self.model.shape
        attention, rest = matrix_parameters(shape, batch)
        head = shape.hidden_size * (shape.vocab_size or 0) * self.model.head_bits / 8
        bits = self.model.weight_bits
        return (
            attention * bits / 8 / self.layout.attention_tp
            + rest * bits / 8 / self.layout.tp
            + head / self.layout.tp
        )

    def _all_reduce_s(self, batch: float) -> float | None:
        """Two all-reduces a layer (Shoeybi et al. 2019, arXiv:1909.08053).

        Each carries 2 (n - 1) / n of its bytes over one direction of the link.
        """
        tp = self.layout.tp
        if tp == 1:
            return 0.0
        if not self.gpu.nvlink_bytes_per_s:
            return None
        shape = self.model.shape
        each = batch * shape.hidden_size * 2
        return 2 * shape.layers * each * 2 * (tp - 1) / tp / (self.gpu.nvlink_bytes_per_s / 2)


def theory_of(model: ServedModel, layout: ServingLayout, gpu: GpuPeak) -> Theory | None:
    """The limits, or None when the GPU's bandwidth or its peak at the model's precision is unknown."""
    # Without units for a narrow type, its weights are widened first.
    flops = gpu.flops.get(model.precision) or gpu.flops.get("bf16") or gpu.flops.get("fp16")
    if not gpu.memory_bytes_per_s or not flops:
        return None
    return Theory(
        model=model,
        layout=layout,
        gpu=gpu,
        bandwidth_bytes_per_s=gpu.memory_bytes_per_s,
        flops_per_s=flops,
    )


def matrix_parameters(shape: ModelShape, batch: float | None) -> tuple[float, float]:
    """Parameters that a step of `batch` tokens reads: of attention, and of the rest.

    Embedding and head are left out. Of experts, those count that tokens routed evenly touch; all of them
    when `batch` is None.
    """
    attention = shape.layers * _attention_parameters(shape)
    matrices = 3 if shape.gated_mlp else 2
    dense = shape.layers * matrices * shape.hidden_size * shape.ffn_size
    if shape.moe is None:
        return attention, dense
    moe = shape.moe
    layers = sum(moe.layer_pattern)
    touched = moe.experts
    if batch is not None:
        touched = moe.experts * (1 - (1 - moe.top_k / moe.experts) ** max(batch, 1))
    expert = 3 * shape.hidden_size * moe.expert_ffn_size
    shared = 3 * shape.hidden_size * moe.shared_expert_ffn_size
    rest = (dense / shape.layers) * (shape.layers - layers)
    return attention, rest + layers * (touched * expert + shared)


def active_parameters(shape: ModelShape) -> float:
    """Parameters that one token is multiplied with, without embedding and head."""
    attention, rest = matrix_parameters(shape, 1)
    return attention + rest


def decode_flops(shape: ModelShape, context_tokens: float) -> float:
    """Of one token: 2 a parameter, and its query with the keys and values of its context."""
    head = 2 * shape.hidden_size * (shape.vocab_size or 0)
    return 2 * active_parameters(shape) + head + _attention_flops(shape) * context_tokens


def prefill_flops(shape: ModelShape, prompt_tokens: float) -> float:
    """Of a whole prompt with causal attention; the head runs for its last token only."""
    head = 2 * shape.hidden_size * (shape.vocab_size or 0)
    attention = _attention_flops(shape) * prompt_tokens * prompt_tokens / 2
    return 2 * active_parameters(shape) * prompt_tokens + attention + head


def _attention_parameters(shape: ModelShape) -> float:
    mla, hidden, heads = shape.mla, shape.hidden_size, shape.attention_heads
    if mla is None:
        return hidden * shape.head_size * (2 * heads + 2 * shape.kv_heads)
    query_size = heads * (mla.qk_head_dim + mla.qk_pos_emb_head_dim)
    query = hidden * query_size if not mla.q_lora_rank else mla.q_lora_rank * (hidden + query_size)
    latent = hidden * (mla.kv_lora_rank + mla.qk_pos_emb_head_dim)
    expand = mla.kv_lora_rank * heads * (mla.qk_head_dim + mla.v_head_dim)
    return query + latent + expand + heads * mla.v_head_dim * hidden


def _attention_flops(shape: ModelShape) -> float:
    """Of one token per token of context, over all layers."""
    mla, heads = shape.mla, shape.attention_heads
    if mla is None:
        return 4 * shape.layers * heads * shape.head_size
    return 2 * shape.layers * heads * (mla.qk_head_dim + mla.qk_pos_emb_head_dim + mla.v_head_dim)

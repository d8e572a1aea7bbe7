"""What a kernel, a copy or a driver call is, by its name."""

from __future__ import annotations

import re
from functools import lru_cache

from perfd.trace.model.operation_kinds import HostCallKind, OperationKind

# NCCL and RCCL in every spelling, and the communication kernels that are not theirs: the custom
# all-reduces of vLLM, SGLang, FlashInfer and PyTorch's symmetric memory, DeepEP, NVSHMEM, Transformer
# Engine's userbuffers, MSCCL.
_COMMUNICATION = re.compile(
    r"nccl|cross_device_reduce|allreduce_fusion|all_reduce_kernel|(?:one|two)_shot_|multimem_all_reduce|deep_ep::"
    r"|nvshmem|userbuffers|msccl",
    re.IGNORECASE,
)
# The first that matches counts, so the more specific words come first. Of names in lower case: to search so
# takes half of the time that it takes to ignore case, and names of templates are long. FlashInfer has norms,
# FBGEMM has embeddings, CUTLASS has attention: what a kernel does comes before where it is from.
_CLASSES = tuple(
    (label, re.compile(words))
    for label, words in (
        ("copy", r"^mem(?:cpy|set)\b|^memory (?:copy|set)|rocclr_(?:copy|fill)buffer"),
        ("graph", r"^cuda graph"),
        # Kernels of random numbers are named after the distribution; "normal" is not a normalization.
        ("elementwise", r"distribution_elementwise|distribution_nullary"),
        # A vector's norm is a sum.
        ("reduction", r"\bnorm(?:zero|one|two)?ops<"),
        (
            "copy",
            (
                r"reshape_and_cache|append_?paged_?kv|copy_blocks|kv_?indices|nchwtonhwc|nhwctonchw|tensortransform"
                r"|concat_and_cache"
            ),
        ),
        (
            "embedding",
            (
                r"split_embedding|embedding_(?:bag|forward|backward|dense)"
                r"|permute_\w{0,40}(?:sparse|pooled|embed|data|lengths|embs)"
            ),
        ),
        (
            "normalization",
            r"rms_?norm|layer_?norm|group_?norm|batch_?norm|flashinfer::norm|bn_(?:fw|bw|finalize)|gammabeta",
        ),
        (
            "elementwise",
            (
                r"act_and_mul|silu_and_mul|gelu_and_mul|rotary|fused_rope|applyrot|token_group_quant|scaled_fp8_quant"
                r"|doactivation|cast_transpose|quantize_?(?:kernel|fp8)"
            ),
        ),
        (
            "convolution",
            (
                r"implicitgemmconv|implicit_gemm|implicit_convolve|grouped_conv|igemm_(?:fwd|bwd|wrw)"
                r"|scudnn|[dw]grad_(?:engine|alg)|(?<!flash_)[fd]prop|[dw]grad_optimized|_dgrad|_wgrad|conv_?[123]d|winograd"
            ),
        ),
        (
            "attention",
            (
                r"flash_?(?:attn|fwd|bwd|fprop|bprop|attention)|flash::|fmha|attention|attn|sdpa|sage_|mmha|mla_"
                r"|batch(?:decode|prefill)with|single(?:decode|prefill)with|_fwd_(?:grouped_)?kernel_stage|mla::"
            ),
        ),
        ("sampling", r"sampling|topk_?topp|min_?p_"),
        (
            "matmul",
            (
                r"(?<!fb)gemm|gemv|nvjet|wgmma|matmul|cublas|xmma|s16816|s1688|gmma|dot_general|cijk_|fused_moe_kernel"
                r"|\bbmm_|marlin|triton_tem_\w{0,80}mm|\btriton_b?mm|splitkreduce|cutlass"
            ),
        ),
        ("convolution", r"conv(?!ert)|cudnn::cnn"),
        ("normalization", r"norm"),
        ("softmax", r"softmax|cross_entropy"),
        ("optimizer", r"multi_tensor_apply|adam|sgd|optimizer"),
        (
            "reduction",
            r"reduce|triton_red|triton_per|argmax|sum_kernel|cumsum|scan|sort|pool(?:ing)?_|max_pool|avg_pool|topk",
        ),
        ("embedding", r"embedding|gather|index_?select|scatter|indexing_backward"),
        (
            "elementwise",
            r"elementwise|triton_poi|pointwise|dropout|cast|copy|fill|swiglu|gelu|silu|upsample|quant",
        ),
    )
)
_TENSOR_CORES = re.compile(
    r"hmma|imma|wgmma|gmma|tensorop|xmma(?!\w*(?:ffma|f32f32_f32f32_f32))|nvjet|s16816|cutlass(?:(?!cutlass).)*sm(?:80|90|100)"
    r"|(?:bf|fp)16(?:(?!(?:bf|fp)16).)*gemm|flash|fmha",
    re.IGNORECASE,
)
_ASYNCHRONOUS_COPY = re.compile(r"(?:cuda|cu|hip)Mem(?:cpy|set).*Async")
_LAUNCH = re.compile(r"Launch(?!HostFunc)")
_SYNCHRONIZE = re.compile(r"Synchronize|(?:cuda|cu|hip)Memcpy(?!.*Async)")
_CAPTURE_BEGIN = re.compile(r"StreamBeginCapture")
_CAPTURE_END = re.compile(r"StreamEndCapture")
_COLLECTIVES = tuple(
    (label, re.compile(words, re.IGNORECASE))
    for label, words in (
        ("reducescatter", r"reduce[-_]?scatter"),
        ("allgather", r"all[-_]?gather"),
        ("alltoall", r"all[-_]?to[-_]?all|deep_ep::"),
        ("allreduce", r"all[-_]?reduce|cross_device_reduce|(?:one|two)_shot_"),
        ("broadcast", r"broadcast"),
        ("sendrecv", r"send|recv|collective-permute"),
        ("reduce", r"reduce"),
    )
)


@lru_cache(maxsize=65536)
def kernel_kind(name: str) -> OperationKind:
    """Whether a kernel computes or communicates."""
    return OperationKind.COMMUNICATION if _COMMUNICATION.search(name) else OperationKind.COMPUTE


@lru_cache(maxsize=65536)
def kernel_class(name: str) -> str:
    """The kernel's class for the table: `matmul`, `attention`, ..., or `other`."""
    if _COMMUNICATION.search(name):
        return "communication"
    plain = name.lower()
    return next((label for label, pattern in _CLASSES if pattern.search(plain)), "other")


@lru_cache(maxsize=65536)
def uses_tensor_cores(name: str) -> bool:
    """Whether the name indicates it. A heuristic: only hardware counters know."""
    return bool(_TENSOR_CORES.search(name))


@lru_cache(maxsize=4096)
def call_kind(name: str) -> HostCallKind:
    """What a call into the CUDA or HIP runtime or driver does to the host."""
    if _ASYNCHRONOUS_COPY.match(name):
        return HostCallKind.COPY
    if _SYNCHRONIZE.search(name):
        return HostCallKind.SYNCHRONIZE
    if _LAUNCH.search(name):
        return HostCallKind.LAUNCH
    if _CAPTURE_BEGIN.search(name):
        return HostCallKind.CAPTURE_BEGIN
    return HostCallKind.CAPTURE_END if _CAPTURE_END.search(name) else HostCallKind.OTHER


@lru_cache(maxsize=4096)
def collective_operation(name: str) -> str:
    """The operation that a kernel's or a framework's name means: `allreduce`, ..., or `other`."""
    if "barrier" in name.lower():
        return "barrier"
    return next((label for label, pattern in _COLLECTIVES if pattern.search(name)), "other")

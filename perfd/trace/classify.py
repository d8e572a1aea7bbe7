"""What a kernel or a driver call is, by its name."""

from __future__ import annotations

import re
from functools import lru_cache

from perfd.trace.model import Call, Kind

# NCCL and RCCL in every spelling, and the communication kernels that are not theirs: the custom
# all-reduces of vLLM, SGLang, FlashInfer and PyTorch's symmetric memory, DeepEP, NVSHMEM, Transformer
# Engine's userbuffers, MSCCL.
_COMMUNICATION = re.compile(
    r"nccl|cross_device_reduce|allreduce_fusion|all_reduce_kernel|(?:one|two)_shot_|multimem_all_reduce|deep_ep::"
    r"|nvshmem|userbuffers|msccl",
    re.IGNORECASE,
)
# The first that matches counts, so the more telling words come first.
_CLASSES = tuple(
    (label, re.compile(words, re.IGNORECASE))
    for label, words in (
        ("attention", r"flash|fmha|attention|attn"),
        ("matmul", r"gemm|nvjet|cutlass|wgmma|matmul|cublas|xmma|s16816|gmma|dot_general|Cijk_"),
        ("convolution", r"conv|winograd"),
        ("normalization", r"norm"),
        ("softmax", r"softmax"),
        ("optimizer", r"multi_tensor_apply|adam|sgd|optimizer"),
        ("reduction", r"reduce|argmax|sum_kernel|cumsum|scan"),
        ("embedding", r"embedding|gather|index_select|indexSelect|scatter"),
        ("elementwise", r"elementwise|pointwise|triton_poi|dropout|cast|copy|fill"),
    )
)
_TENSOR_CORES = re.compile(
    r"hmma|imma|wgmma|gmma|tensorop|xmma|nvjet|s16816|cutlass.*sm(?:80|90|100)|(?:bf|fp)16.*gemm|flash|fmha",
    re.IGNORECASE,
)
_LAUNCH = re.compile(r"Launch|cudaMemcpy.*Async|cudaMemset.*Async|cuMemcpy.*Async|cuMemset.*Async")
_SYNCHRONIZE = re.compile(
    r"Synchronize|cudaMemcpy(?!.*Async)|cuMemcpy(?!.*Async)|cudaStreamWaitValue|EventQuery"
)


@lru_cache(maxsize=65536)
def kernel_kind(name: str) -> Kind:
    """Whether a kernel computes or communicates."""
    return Kind.COMMUNICATION if _COMMUNICATION.search(name) else Kind.COMPUTE


@lru_cache(maxsize=65536)
def kernel_class(name: str) -> str:
    """The kernel's class for the table: `matmul`, `attention`, ..., or `other`."""
    if _COMMUNICATION.search(name):
        return "communication"
    return next((label for label, pattern in _CLASSES if pattern.search(name)), "other")


@lru_cache(maxsize=65536)
def uses_tensor_cores(name: str) -> bool:
    """Whether the name says so. A heuristic: only hardware counters know."""
    return bool(_TENSOR_CORES.search(name))


@lru_cache(maxsize=4096)
def call_kind(name: str) -> Call:
    """What a call into the CUDA or HIP runtime does to the host."""
    if _SYNCHRONIZE.search(name) and not name.startswith(("cudaEventQuery", "cuEventQuery")):
        return Call.SYNCHRONIZE
    return Call.LAUNCH if _LAUNCH.search(name) else Call.OTHER

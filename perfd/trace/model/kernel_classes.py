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
# takes half of the time that it takes to ignore case, and names of templates are long.
_CLASSES = tuple(
    (label, re.compile(words))
    for label, words in (
        ("copy", r"^mem(?:cpy|set)\b|^memory (?:copy|set)"),
        ("graph", r"^cuda graph"),
        ("attention", r"flash|fmha|attention|attn"),
        ("matmul", r"gemm|nvjet|cutlass|wgmma|matmul|cublas|xmma|s16816|gmma|dot_general|cijk_"),
        ("convolution", r"conv(?!ert)|winograd"),
        ("normalization", r"norm"),
        ("softmax", r"softmax"),
        ("optimizer", r"multi_tensor_apply|adam|sgd|optimizer"),
        ("reduction", r"reduce|triton_red|triton_per|argmax|sum_kernel|cumsum|scan|sort"),
        ("embedding", r"embedding|gather|index_?select|scatter"),
        ("elementwise", r"elementwise|triton_poi|pointwise|dropout|cast|copy|fill|swiglu|gelu"),
    )
)
_TENSOR_CORES = re.compile(
    r"hmma|imma|wgmma|gmma|tensorop|xmma|nvjet|s16816|cutlass(?:(?!cutlass).)*sm(?:80|90|100)"
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
        ("reducescatter", r"reduce_?scatter"),
        ("allgather", r"all_?gather"),
        ("alltoall", r"all_?to_?all|deep_ep::"),
        ("allreduce", r"all_?reduce|cross_device_reduce|(?:one|two)_shot_"),
        ("broadcast", r"broadcast"),
        ("sendrecv", r"send|recv"),
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

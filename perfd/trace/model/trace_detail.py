"""What only tables of a trace need of a rank, beside its `RankTrace`: reading it takes longer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from perfd.trace.model.host_spans import HostSpans
from perfd.trace.model.intervals import Ns


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedCalls:
    """m calls of the host, in no order. Times are nanoseconds."""

    start_ns: Ns
    end_ns: Ns
    name: Ns
    """Index into `names`."""
    names: Sequence[str]


def no_named_calls() -> NamedCalls:
    """None at all."""
    empty = np.empty(0, dtype=np.int64)
    return NamedCalls(start_ns=empty, end_ns=empty, name=empty, names=())


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceDetail:
    """Of a rank with n operations on its GPU."""

    size_bytes: Ns
    """Of each operation that copies or fills; -1 for others, and where the trace does not say."""
    launch_shape: Ns
    """Of each operation an index into `launch_shapes`; -1 where the trace does not say."""
    launch_shapes: Sequence[str]
    """Blocks and threads: `363164x1x1 128x1x1`."""
    api: NamedCalls
    """All calls into the CUDA or HIP runtime and driver."""
    os_calls: NamedCalls
    """Calls into the operating system, as Nsight Systems records with `--trace=osrt`."""
    library_calls: NamedCalls = field(default_factory=no_named_calls)
    """Calls into cuDNN and cuBLAS, as Nsight Systems records with `--trace=cudnn,cublas`."""
    stream_priorities: Mapping[int, int] = field(default_factory=dict)
    """By stream; the lowest number is served first."""
    multiprocessors: int | None = None
    """Of the GPU."""
    spans: HostSpans | None = None
    """Operators and Python functions of PyTorch's profiler."""

"""The command that runs a whole job under Nsight Systems by hand and collects only a part of it.

perfd's own captures begin at a common time and end by steps; here the job says when, through CUDA's profiler
functions or an NVTX range. Options: Nsight Systems User Guide, "CLI Profile Command Switch Options".
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from perfd.errors import CaptureError

_RANGE = re.compile(r"[^@\s]+(?:@[^@\s]+)?")
_MEGATRON = re.compile(r"--profile-step-(start|end)(=|$)")


@dataclass(frozen=True, slots=True, kw_only=True)
class NsysPlan:
    """What to collect."""

    command: Sequence[str]
    """How the job is started; a launcher such as torchrun, too."""
    profiler_api: bool = False
    """Only from `cudaProfilerStart` to `cudaProfilerStop`."""
    nvtx_range: str | None = None
    """Only while this range is open, RANGE or RANGE@DOMAIN."""
    graph_nodes: bool = False
    """Each kernel of a CUDA graph, not each graph as a whole: costs more."""
    trace: str = "cuda,nvtx"
    output: str = "perfd-nsys"


def plan_nsys(wanted: NsysPlan) -> str:
    """A shell script of one command, with what to know before it is run; raises `CaptureError`."""
    if not wanted.command:
        raise CaptureError("Give the job's command after --, for example -- torchrun train.py.")
    if wanted.profiler_api and wanted.nvtx_range is not None:
        raise CaptureError("--profiler-api and --nvtx both say when to collect: give one of them.")
    if wanted.nvtx_range is not None and not _RANGE.fullmatch(wanted.nvtx_range):
        raise CaptureError(f"{wanted.nvtx_range!r} is not a range; write RANGE or RANGE@DOMAIN.")
    by_steps = [word for word in wanted.command if _MEGATRON.match(word)]
    if "--use-pytorch-profiler" in wanted.command:
        by_steps = []
    if by_steps and not wanted.profiler_api:
        raise CaptureError(
            f"{by_steps[0]} makes the job call cudaProfilerStart: add --profiler-api, otherwise all of it is"
            " collected."
        )
    if by_steps and "--profile" not in wanted.command:
        raise CaptureError(f"{by_steps[0]} has no effect without --profile: add it to the job's command.")
    notes = (
        "#!/bin/sh",
        "# One report per node (%h is its name), with all its ranks. Then: perfd analyze REPORT.nsys-rep",
    )
    environment = []
    if wanted.nvtx_range is not None:
        # Names that are passed as plain strings, as PyTorch does, are compared too.
        environment = ["env", "NSYS_NVTX_PROFILER_REGISTER_ONLY=0"]
    words = [*environment, "nsys", "profile", *_options(wanted), *wanted.command]
    return "\n".join((*notes, shlex.join(words))) + "\n"


def _options(wanted: NsysPlan) -> list[str]:
    options = [f"--trace={wanted.trace}", "--sample=none", "--cpuctxsw=none"]
    if wanted.graph_nodes:
        options += ["--cuda-graph-trace=node"]
    if wanted.profiler_api:
        options += ["--capture-range=cudaProfilerApi"]
    if wanted.nvtx_range is not None:
        options += ["--capture-range=nvtx", f"--nvtx-capture={wanted.nvtx_range}"]
    if wanted.profiler_api or wanted.nvtx_range is not None:
        # By default the job would be ended with the range.
        options += ["--capture-range-end=stop"]
    return [*options, f"--output={wanted.output}-%h"]

"""Builds the command to run a job under Nsight Systems by hand and collect all or part of it.

perfd's own captures start at a set time and end after some steps. Here the job can choose the part, with
the CUDA profiler API or an NVTX range. Options: Nsight Systems User Guide, "CLI Profile Command Switch
Options".
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
    """The command that starts the job, including a launcher such as torchrun."""
    profiler_api: bool = False
    """Only from `cudaProfilerStart` to `cudaProfilerStop`."""
    nvtx_range: str | None = None
    """Only while this range is open, RANGE or RANGE@DOMAIN."""
    graph_nodes: bool = False
    """Collect each kernel in a CUDA graph instead of each graph as a whole: more overhead."""
    trace: str = "cuda,nvtx"
    output: str = "perfd-nsys"


def plan_nsys(wanted: NsysPlan) -> str:
    """A shell script with the command and notes on its use; raises `CaptureError`."""
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
        # Also match names passed as plain strings, as PyTorch does.
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
        # By default, nsys ends the job with the range.
        options += ["--capture-range-end=stop"]
    return [*options, f"--output={wanted.output}-%h"]

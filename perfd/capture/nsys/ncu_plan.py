"""The command that profiles one kernel of one rank with Nsight Compute, offline.

ncu replays and serializes kernels, which deadlocks ranks that wait for each other: perfd never runs it.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import PurePath

from perfd.errors import CaptureError

_LAUNCHERS = frozenset(
    {
        "torchrun", "torch.distributed.run", "torch.distributed.launch", "accelerate", "deepspeed", "srun",
        "mpirun", "mpiexec", "horovodrun",
    }
)  # fmt: skip
"""Launchers, which start ranks themselves, regardless of the environment, all of them under ncu."""
_RANGE = re.compile(r"[^,/\[\]@]+(?:@[^,/\[\]@]+)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class NcuPlan:
    """What to profile."""

    command: Sequence[str]
    """How the job is started on one GPU."""
    kernel: str | None = None
    """A regular expression of kernel names."""
    nvtx_range: str | None = None
    """`DOMAIN@RANGE` or `RANGE`, a range that is pushed and popped."""
    skip: int = 0
    count: int = 1
    output: str = "perfd-ncu"
    shared_gpu: bool = False
    """Others use the GPU, so its clocks must stay as they are."""


def plan(wanted: NcuPlan) -> str:
    """A shell script of one command, with what to know before it is run; raises `CaptureError`."""
    if not wanted.command:
        raise CaptureError("Give the job's command after --, for example -- python train.py.")
    before_script = takewhile(lambda word: not word.endswith(".py"), wanted.command)
    launchers = [name for word in before_script if (name := PurePath(word).name) in _LAUNCHERS]
    if launchers:
        raise CaptureError(
            f"{launchers[0]} starts several ranks: give the command of one rank, for example"
            " -- python train.py."
        )
    if wanted.kernel is None and wanted.nvtx_range is None:
        raise CaptureError("Set what to profile: --kernel REGEX or --nvtx RANGE.")
    if wanted.nvtx_range is not None and not _RANGE.fullmatch(wanted.nvtx_range):
        raise CaptureError(f"{wanted.nvtx_range!r} is not a range; write RANGE or DOMAIN@RANGE.")
    if wanted.skip < 0 or wanted.count < 1:
        raise CaptureError("--skip is at least 0 and --count at least 1.")
    notes = (
        "#!/bin/sh",
        "# Reruns one rank alone. Never run ncu on a rank of a live job: it serializes and replays kernels,",
        "# and the other ranks wait forever in their collectives.",
    )
    environment = ["RANK=0", "LOCAL_RANK=0", "WORLD_SIZE=1", "MASTER_ADDR=127.0.0.1", "MASTER_PORT=29599"]
    words = [*environment, "ncu", *_options(wanted), *wanted.command]
    return "\n".join((*notes, shlex.join(["env", *words]))) + "\n"


def _options(wanted: NcuPlan) -> list[str]:
    options = ["--target-processes", "all", "--set", "full", "--import-source", "yes"]
    if wanted.kernel is not None:
        options += ["--kernel-name", f"regex:{wanted.kernel}"]
    if wanted.nvtx_range is not None:
        # The slash marks a pushed range.
        options += ["--nvtx", "--nvtx-include", f"{wanted.nvtx_range}/"]
    if wanted.shared_gpu:
        options += ["--clock-control", "none"]
    options += ["--launch-skip", str(wanted.skip), "--launch-count", str(wanted.count)]
    return [*options, "--export", wanted.output]

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
_PARALLEL_FLAGS = frozenset(
    {
        "--tp", "--tp-size", "--tensor-parallel-size", "-tp", "--pp", "--pp-size", "--pipeline-parallel-size",
        "-pp", "--dp", "--dp-size", "--data-parallel-size", "-dp", "--ep-size", "--nproc-per-node",
        "--nproc_per_node",
    }
)  # fmt: skip
"""Flags with which inference servers start several ranks themselves."""
REPLAY_MODES = ("kernel", "application", "range", "app-range")
_MOST_DIGITS = 7
"""More digits than a number of GPUs has; it bounds the conversion of an argument."""
_SECTION = re.compile(r"\w{1,80}")
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
    start_end: bool = False
    """The range is one that is started and ended (`nvtx.start_range`), not pushed and popped."""
    sections: Sequence[str] = ()
    """Only these sections (`SpeedOfLight`, `MemoryWorkloadAnalysis`), in place of all."""
    replay_mode: str | None = None
    """One of `REPLAY_MODES`; None is Nsight Compute's own choice, kernel."""
    profiler_api: bool = False
    """Only what runs between `cudaProfilerStart` and `cudaProfilerStop`."""
    skip: int = 0
    count: int | None = None
    """None for one kernel, or all of a range."""
    output: str = "perfd-ncu"
    shared_gpu: bool = False
    """Others use the GPU, so its clocks must stay as they are."""


def plan_ncu(wanted: NcuPlan) -> str:
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
    if (flag := _parallel_flag(wanted.command)) is not None:
        raise CaptureError(
            f"{flag} starts several ranks: give the command of one rank, with {flag.split()[0]} 1."
        )
    if wanted.kernel is None and wanted.nvtx_range is None and not wanted.profiler_api:
        raise CaptureError("Set what to profile: --kernel REGEX, --nvtx RANGE or --profiler-api.")
    if wanted.nvtx_range is not None and not _RANGE.fullmatch(wanted.nvtx_range):
        raise CaptureError(f"{wanted.nvtx_range!r} is not a range; write RANGE or DOMAIN@RANGE.")
    if wanted.replay_mode is not None and wanted.replay_mode not in REPLAY_MODES:
        raise CaptureError(f"{wanted.replay_mode!r} is not one of {', '.join(REPLAY_MODES)}.")
    if not all(_SECTION.fullmatch(section) for section in wanted.sections):
        raise CaptureError("A section is a word, such as SpeedOfLight; `ncu --list-sections` has all.")
    if wanted.skip < 0 or (wanted.count is not None and wanted.count < 1):
        raise CaptureError("--skip must be at least 0 and --count at least 1.")
    notes = (
        "#!/bin/sh",
        "# Reruns one rank alone. Never run ncu on a rank of a live job: it serializes and replays kernels,",
        "# and the other ranks wait forever in their collectives.",
    )
    environment = ["RANK=0", "LOCAL_RANK=0", "WORLD_SIZE=1", "MASTER_ADDR=127.0.0.1", "MASTER_PORT=29599"]
    words = [*environment, "ncu", *_options(wanted), *wanted.command]
    return "\n".join((*notes, shlex.join(["env", *words]))) + "\n"


def _parallel_flag(command: Sequence[str]) -> str | None:
    """The flag and its value by which a command starts more than one rank."""
    for flag, value in zip(command, [*command[1:], ""], strict=True):
        name, equals, inline = flag.partition("=")
        number = inline if equals else value
        if name in _PARALLEL_FLAGS and number.isdecimal() and len(number) < _MOST_DIGITS and int(number) > 1:
            return f"{name} {number}"
    return None


def _options(wanted: NcuPlan) -> list[str]:
    options = ["--target-processes", "all"]
    options += [word for section in wanted.sections for word in ("--section", section)] or ["--set", "full"]
    options += ["--import-source", "yes"]
    if wanted.kernel is not None:
        options += ["--kernel-name", f"regex:{wanted.kernel}"]
    if wanted.nvtx_range is not None:
        # The slash marks a pushed range.
        options += ["--nvtx", "--nvtx-include", wanted.nvtx_range + ("" if wanted.start_end else "/")]
    if wanted.profiler_api:
        options += ["--profile-from-start", "off"]
    if wanted.replay_mode is not None:
        options += ["--replay-mode", wanted.replay_mode]
    if wanted.shared_gpu:
        options += ["--clock-control", "none"]
    whole = wanted.kernel is None and wanted.count is None
    count = [] if whole else ["--launch-count", str(wanted.count or 1)]
    return [*options, "--launch-skip", str(wanted.skip), *count, "--export", wanted.output]

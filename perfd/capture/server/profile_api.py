"""What each version of SGLang and vLLM understands about profiling itself: pure decisions.

Read in the sources of SGLang 0.4.3 to 0.5.23 (`entrypoints/http_server.py`, the scheduler's profiler) and
of vLLM 0.6.6 to 0.33 (`entrypoints/serve/profile`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perfd.model import CaptureTool

_SGLANG_FOLDER_SINCE = (0, 4, 4)
"""Before, no parameter is taken."""
_SGLANG_STEPS_SINCE = (0, 4, 10)
"""Before (seen in 0.4.6), `num_steps` keeps the request waiting until the steps are over: in an idle server
for ever."""
_VLLM_STEPS_SINCE = (0, 33)
"""The first release that was read with `max_iterations` in the body; 0.22 takes none."""
_LOOK_AFTER_S = 2.0
"""A few steps of 5 to 50 ms; where they cannot be counted, this is how long is traced."""

Version = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileApi:
    """What a server of one version can be told about a profile."""

    folder: bool
    """Where to write; else it writes where it was launched to write."""
    steps: bool
    """After how many forward passes to stop by itself."""


def abilities(kind: CaptureTool, version: Version) -> ProfileApi:
    """What a server of this version understands; an unknown version is taken for the oldest."""
    if kind is CaptureTool.SGLANG:
        return ProfileApi(folder=version >= _SGLANG_FOLDER_SINCE, steps=version >= _SGLANG_STEPS_SINCE)
    return ProfileApi(folder=False, steps=version >= _VLLM_STEPS_SINCE)


def body(kind: CaptureTool, can: ProfileApi, folder: Path, steps: int | None) -> Mapping[str, Any] | None:
    """The body of `/start_profile`, or None for a server that takes none."""
    if kind is CaptureTool.VLLM:
        return {"max_iterations": steps} if can.steps and steps is not None else None
    if not can.folder:
        return None
    counted = {"num_steps": steps} if can.steps and steps is not None else {}
    # Stacks and shapes are on unless they are refused, and make a trace many times larger.
    quiet = {"activities": ["CPU", "GPU"], "with_stack": False, "record_shapes": False}
    return {"output_dir": str(folder), **quiet, **counted}


def length_s(steps: int | None, max_duration_s: float) -> float:
    """How long to let a server profile before it is looked at again."""
    return max_duration_s if steps is None else min(max_duration_s, _LOOK_AFTER_S)


def version_of(text: object) -> Version:
    """`0.5.9.post1` as numbers; empty, which is before all, when it is none."""
    found = re.match(r"v?(\d+)\.(\d+)(?:\.(\d+))?", text) if isinstance(text, str) else None
    return tuple(int(number) for number in found.groups(default="0")) if found else ()


def expected_traces(kind: CaptureTool, info: Mapping[str, Any]) -> int | None:
    """How many ranks of this node will write a trace, by SGLang's arguments; None when it is not known."""
    said = (info.get(name, 1) for name in ("tp_size", "pp_size", "nnodes"))
    sizes = [size for size in said if isinstance(size, int) and size > 0]
    if kind is not CaptureTool.SGLANG or "tp_size" not in info or len(sizes) < 3:
        return None
    replicas = info.get("dp_size", 1)
    # With attention data parallelism the replicas share the ranks of the tensor group.
    if not isinstance(replicas, int) or info.get("enable_dp_attention") or replicas < 1:
        replicas = 1
    tensor, stages, nodes = sizes
    return max(1, tensor * stages * replicas // nodes)

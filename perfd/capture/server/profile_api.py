"""The profiling parameters of each version of SGLang and vLLM: pure decisions.

From the sources of SGLang 0.4.3 to 0.5.23 (`entrypoints/http_server.py`, the scheduler's profiler) and
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
"""Earlier versions take no parameter."""
_SGLANG_STEPS_SINCE = (0, 4, 10)
"""In earlier versions (seen in 0.4.6), `num_steps` blocks the request until the steps are over: in an idle
server forever."""
_VLLM_STEPS_SINCE = (0, 33)
"""The first examined release with `max_iterations` in the body; 0.22 has none."""
_LOOK_AFTER_S = 2.0
"""A few steps of 5 to 50 ms; the length of a trace if steps cannot be counted."""

Version = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileApi:
    """The parameters of a profile that a server's version supports."""

    folder: bool
    """The folder; otherwise it writes where it was launched to write."""
    steps: bool
    """The number of forward passes after which it stops by itself."""


def abilities(kind: CaptureTool, version: Version) -> ProfileApi:
    """The parameters for a version; an unknown version counts as the oldest."""
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
    """How long to let a server profile before the next check."""
    return max_duration_s if steps is None else min(max_duration_s, _LOOK_AFTER_S)


def version_of(text: object) -> Version:
    """`0.5.9.post1` as numbers; empty, which sorts first, if it is not a version."""
    found = re.match(r"v?(\d+)\.(\d+)(?:\.(\d+))?", text) if isinstance(text, str) else None
    return tuple(int(number) for number in found.groups(default="0")) if found else ()


def expected_traces(kind: CaptureTool, info: Mapping[str, Any]) -> int | None:
    """How many ranks of this node will write a trace, by SGLang's arguments; None if unknown."""
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

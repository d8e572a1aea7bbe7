"""What an SGLang server says about itself over HTTP, by the paths of every version."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from perfd.analysis.serving import ServerSetup, from_arguments

INFO_PATHS = ("/server_info", "/get_server_info")
"""0.5.9 and later; all versions, deprecated since."""
LOAD_PATHS = ("/v1/loads", "/get_load")
"""0.5.9 and later; 0.4.10 to 0.5.20."""


def parse_info(body: bytes) -> ServerSetup | None:
    """The answer of either info path; None when it is none."""
    said = _object(body)
    return None if said is None or "model_path" not in said else from_arguments(said)


def with_loads(info: ServerSetup, body: bytes) -> ServerSetup:
    """Add the accelerator and capacity that `/v1/loads` tells, where it does."""
    said = _object(body)
    if said is None:
        return info
    accelerator, loads = said.get("accelerator"), said.get("loads")
    capacity = info.kv_total_tokens
    if isinstance(loads, list):
        sizes = [load.get("max_total_num_tokens") for load in loads if isinstance(load, Mapping)]
        known = [size for size in sizes if isinstance(size, int | float) and size > 0]
        capacity = float(sum(known)) if known and len(known) == len(loads) else capacity
    return replace(
        info,
        gpu_name=accelerator if isinstance(accelerator, str) and accelerator else info.gpu_name,
        kv_total_tokens=capacity,
    )


def _object(body: bytes) -> Mapping[str, Any] | None:
    try:
        said = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return said if isinstance(said, Mapping) else None

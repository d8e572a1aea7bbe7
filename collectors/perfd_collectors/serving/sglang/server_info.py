"""An SGLang server's configuration over HTTP, by the paths of all versions."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from perfd.analysis.serving import ServerSetup, from_arguments

INFO_PATHS = ("/server_info", "/get_server_info")
"""The first since 0.5.9, the second in all versions, deprecated since 0.5.9."""
LOAD_PATHS = ("/v1/loads", "/get_load")
"""The first since 0.5.9, the second from 0.4.10 to 0.5.20."""


def parse_info(body: bytes) -> ServerSetup | None:
    """The configuration in a response of either info path; None when it is invalid."""
    answer = _object(body)
    return None if answer is None or "model_path" not in answer else from_arguments(answer)


def with_loads(info: ServerSetup, body: bytes) -> ServerSetup:
    """Complete a configuration with accelerator and capacity from `/v1/loads`."""
    answer = _object(body)
    if answer is None:
        return info
    accelerator, loads = answer.get("accelerator"), answer.get("loads")
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
        answer = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return answer if isinstance(answer, Mapping) else None

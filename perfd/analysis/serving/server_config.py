"""What a server says about its own set-up."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from perfd.analysis.serving.served_model import first_size
from perfd.analysis.serving.serving_theory import ServingLayout

_TP = ("tp_size", "tensor_parallel_size")
_PP = ("pp_size", "pipeline_parallel_size")
_DP = ("dp_size", "data_parallel_size")
_MODEL = ("model_path", "model")
_LIMIT_OF_SERVER, _LIMIT_OF_REPLICA = ("max_running_requests",), ("max_num_seqs",)
"""SGLang divides its limit among its replicas; each of vLLM's engines has its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSetup:
    """Version, model and layout of a server; None where it does not say."""

    version: str | None = None
    model: str | None = None
    layout: ServingLayout | None = None
    gpu_name: str | None = None
    kv_total_tokens: float | None = None
    max_running_requests: float | None = None
    """Over all replicas."""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    """The server's arguments by the engine's own names."""


def from_arguments(arguments: Mapping[str, Any], version: str | None = None) -> ServerSetup:
    """Read an engine's arguments, whichever engine's they are."""
    tp = first_size(arguments, *_TP)
    layout = None
    if tp is not None:
        layout = ServingLayout(
            tp=tp,
            pp=first_size(arguments, *_PP) or 1,
            dp=first_size(arguments, *_DP) or 1,
            attention_dp=arguments.get("enable_dp_attention") is True,
        )
    model = next((arguments[name] for name in _MODEL if isinstance(arguments.get(name), str)), None)
    tokens = arguments.get("max_total_num_tokens")
    return ServerSetup(
        version=version or _text(arguments.get("version")),
        model=model,
        layout=layout,
        kv_total_tokens=float(tokens) if isinstance(tokens, int | float) and tokens > 0 else None,
        max_running_requests=_limit(arguments),
        arguments=arguments,
    )


def layout_of(
    info: ServerSetup, *, tp: int | None = None, pp: int | None = None, dp: int | None = None
) -> ServingLayout | None:
    """A server's layout with the sizes that are given; None if its number of GPUs is unknown."""
    if info.layout is None and tp is None:
        return None
    reported = info.layout or ServingLayout()
    return replace(reported, tp=tp or reported.tp, pp=pp or reported.pp, dp=dp or reported.dp)


def completed(reported: ServerSetup | None, started: Mapping[str, Any]) -> ServerSetup:
    """What a server says about itself, and where it does not, what it was started with."""
    begun = from_arguments(started)
    if reported is None:
        return begun
    return replace(
        reported,
        model=reported.model or begun.model,
        layout=reported.layout or begun.layout,
        max_running_requests=reported.max_running_requests or begun.max_running_requests,
        arguments={**begun.arguments, **reported.arguments},
    )


def _limit(arguments: Mapping[str, Any]) -> float | None:
    whole, each = first_size(arguments, *_LIMIT_OF_SERVER), first_size(arguments, *_LIMIT_OF_REPLICA)
    return whole if whole is not None or each is None else each * (first_size(arguments, *_DP) or 1)


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None

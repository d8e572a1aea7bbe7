"""Collectors for serving engines: their metrics and logs, reduced on the node. One spec per engine."""

from __future__ import annotations

from functools import partial

from perfd.analysis.serving import Engine
from perfd.collector import CollectorSpec
from perfd.model import ServerColumn
from perfd_collectors.serving.collector import ServingCollector, ServingOptions
from perfd_collectors.serving.columns import COLUMNS

__all__ = [
    "SGLANG",
    "VLLM",
]


def _spec(engine: Engine) -> CollectorSpec:
    return CollectorSpec(
        name=engine.value,
        options=ServingOptions,
        create=partial(ServingCollector, engine),
        interval_s=1.0,
        columns=COLUMNS,
        provides=tuple(ServerColumn),
    )


SGLANG = _spec(Engine.SGLANG)
VLLM = _spec(Engine.VLLM)

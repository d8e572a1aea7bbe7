"""SGLang: its servers on this node, by their metrics and logs."""

from __future__ import annotations

from functools import partial

from perfd.analysis.serving import Engine
from perfd.collector import CollectorSpec
from perfd.model import ServerColumn
from perfd_collectors.serving.collector import ServingCollector, ServingOptions
from perfd_collectors.serving.columns import COLUMNS

__all__ = [
    "SPEC",
]

SPEC = CollectorSpec(
    name="sglang",
    options=ServingOptions,
    create=partial(ServingCollector, Engine.SGLANG),
    interval_s=1.0,
    columns=COLUMNS,
    provides=tuple(ServerColumn),
)

"""Turns the state into series and serves them as a Prometheus page."""

from perfd.aggregator.series.metric_names import MetricNames
from perfd.aggregator.series.page_renderer import PageRenderer
from perfd.aggregator.series.self_metrics import self_registry
from perfd.aggregator.series.series_frames import SELF, SeriesFrames

__all__ = [
    "SELF",
    "MetricNames",
    "PageRenderer",
    "SeriesFrames",
    "self_registry",
]

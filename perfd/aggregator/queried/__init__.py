"""Ranges of charts from a Prometheus-compatible server, of which neither memory nor history has the data."""

from perfd.aggregator.queried.chart_queries import AskedRange, ChartQueries
from perfd.aggregator.queried.prometheus_ranges import TimeRange

__all__ = ["AskedRange", "ChartQueries", "TimeRange"]

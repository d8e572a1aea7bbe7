"""Charts of ranges that neither memory nor history covers, by queries to a Prometheus-compatible server."""

from perfd.aggregator.queried.chart_queries import AskedRange, ChartQueries
from perfd.aggregator.queried.prometheus_ranges import TimeRange

__all__ = ["AskedRange", "ChartQueries", "TimeRange"]

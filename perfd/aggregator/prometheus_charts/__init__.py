"""Charts of ranges that neither memory nor history covers, by queries to a Prometheus-compatible server."""

from perfd.aggregator.prometheus_charts.chart_queries import AskedRange, ChartQueries
from perfd.aggregator.prometheus_charts.prometheus_ranges import TimeRange

__all__ = ["AskedRange", "ChartQueries", "TimeRange"]

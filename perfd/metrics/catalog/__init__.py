"""Every metric that perfd exports: name, unit, labels, source, and when it is absent.

docs/metrics.md is generated from this and from the columns of the collectors; a test
checks that nothing else is exported.
"""

from collections.abc import Mapping

from perfd.metrics.catalog.agent_metrics import AGENT_METRICS, AGENT_PAGE_METRICS
from perfd.metrics.catalog.aggregator_metrics import AGGREGATOR_METRICS
from perfd.metrics.catalog.gateway_metrics import GATEWAY_METRICS
from perfd.metrics.catalog.job_metrics import JOB_METRICS
from perfd.metrics.catalog.metric_info import JOB, MetricInfo, Value, empty_family, families, raw_metric
from perfd.metrics.catalog.process_metrics import PROCESS_METRICS

__all__ = [
    "AGENT_METRICS",
    "AGENT_PAGE_METRICS",
    "AGGREGATOR_METRICS",
    "GATEWAY_METRICS",
    "JOB",
    "JOB_METRICS",
    "METRICS",
    "PROCESS_METRICS",
    "MetricInfo",
    "Value",
    "empty_family",
    "families",
    "raw_metric",
]

METRICS: Mapping[str, MetricInfo] = {
    metric.name: metric for metric in (*JOB_METRICS, *AGENT_METRICS, *AGGREGATOR_METRICS, *PROCESS_METRICS)
}
"""All metrics on the aggregator's page by name, except raw columns and results of recording rules."""

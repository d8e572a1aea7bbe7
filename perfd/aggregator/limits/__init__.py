"""What the aggregator accepts: bounds on sizes and numbers, and the parts of records that are kept."""

from perfd.aggregator.limits.limits import AggregatorCounters, Limits, NatsProgress

__all__ = ["AggregatorCounters", "Limits", "NatsProgress"]

"""A group of aggregators that share one cluster's jobs. Each partition of the jobs has a lease."""

from perfd.aggregator.group.aggregator_group import AggregatorGroup

__all__ = ["AggregatorGroup"]

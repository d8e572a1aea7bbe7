"""A group of aggregators that share the jobs of one cluster, by partitions with leases."""

from perfd.aggregator.group.aggregator_group import AggregatorGroup

__all__ = ["AggregatorGroup"]

"""The part of perfd that turns the streams of agents into numbers, alerts and captures."""

from perfd.aggregator.aggregator import Aggregator

__all__ = ["Aggregator"]

"""Logs of JAX programs."""

from perfd_collectors.training_log.formats.jax.maxtext import MaxTextParser
from perfd_collectors.training_log.formats.jax.metric_writer import MetricWriterParser

__all__ = ["MaxTextParser", "MetricWriterParser"]

"""Sends series to an OpenTelemetry collector."""

from perfd.exporters.otlp.otlp_exporter import OtlpExporter

__all__ = ["OtlpExporter"]

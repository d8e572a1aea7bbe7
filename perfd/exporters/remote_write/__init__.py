"""Sends series by Prometheus remote write."""

from perfd.exporters.remote_write.remote_write_exporter import FrameEncoder, RemoteWriteExporter

__all__ = [
    "FrameEncoder",
    "RemoteWriteExporter",
]

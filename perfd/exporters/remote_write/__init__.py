"""Sends series by Prometheus remote write."""

from perfd.exporters.remote_write.remote_write_exporter import RemoteWriteExporter
from perfd.exporters.remote_write.write_request import FrameEncoder

__all__ = [
    "FrameEncoder",
    "RemoteWriteExporter",
]

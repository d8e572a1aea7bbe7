"""Reads the files of XLA's profiler: `HOST.xplane.pb`."""

from perfd.trace.readers.xplane.xplane_reader import read

__all__ = ["read"]

"""Reads the files of XLA's profiler: `HOST.xplane.pb`."""

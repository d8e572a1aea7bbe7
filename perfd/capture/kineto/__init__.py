"""Captures with PyTorch's own profiler: perfd is the daemon that libkineto polls."""

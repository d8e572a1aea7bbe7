"""Decides when to capture and tracks each capture to its end; no I/O."""

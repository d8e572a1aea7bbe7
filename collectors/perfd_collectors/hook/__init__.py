"""Receives the measurements of `perfd.hook` from training loops of this node."""

from perfd_collectors.hook.collector import SPEC

__all__ = ["SPEC"]

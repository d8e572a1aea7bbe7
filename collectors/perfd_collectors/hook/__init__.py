"""What `perfd.hook` measures inside training loops of this node."""

from perfd_collectors.hook.collector import SPEC

__all__ = ["SPEC"]

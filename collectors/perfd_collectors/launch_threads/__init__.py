"""How busy the launching threads and loader workers of each rank on this node are."""

from __future__ import annotations

from perfd_collectors.launch_threads.collector import SPEC

__all__ = ["SPEC"]

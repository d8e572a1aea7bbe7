"""Captures of JAX's processes through the profiler server that they run."""

from perfd.capture.jax.jax_tool import JaxOptions, JaxTool
from perfd.capture.jax.server_search import find_server, loaded

__all__ = [
    "JaxOptions",
    "JaxTool",
    "find_server",
    "loaded",
]

"""Captures of SGLang and vLLM servers through their profiling endpoints."""

from perfd.capture.server.server_client import ServerClient
from perfd.capture.server.server_tool import CaptureServer, ServerTool

__all__ = [
    "CaptureServer",
    "ServerClient",
    "ServerTool",
]

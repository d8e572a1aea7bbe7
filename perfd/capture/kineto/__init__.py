"""Captures with PyTorch's own profiler: perfd is the daemon that libkineto polls."""

from perfd.capture.kineto.daemon_socket import (
    CLIENT_PREFIX,
    NAME,
    KinetoEndpoint,
    abstract,
    answered_by_others,
)
from perfd.capture.kineto.kineto_tool import KinetoOptions, KinetoTool

__all__ = [
    "CLIENT_PREFIX",
    "NAME",
    "KinetoEndpoint",
    "KinetoOptions",
    "KinetoTool",
    "abstract",
    "answered_by_others",
]

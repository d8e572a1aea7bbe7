"""Captures with PyTorch's own profiler: perfd is the daemon that libkineto polls."""

from perfd.capture.kineto.at_exit import with_wait_at_exit
from perfd.capture.kineto.client_registry import ConfigDelivery
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
    "ConfigDelivery",
    "KinetoEndpoint",
    "KinetoOptions",
    "KinetoTool",
    "abstract",
    "answered_by_others",
    "with_wait_at_exit",
]

"""Removes environment variables and other secrets from captured files before they leave the node."""

from perfd.capture.redact.redaction import can_be_redacted, redacted_copy, whole_copy

__all__ = [
    "can_be_redacted",
    "redacted_copy",
    "whole_copy",
]

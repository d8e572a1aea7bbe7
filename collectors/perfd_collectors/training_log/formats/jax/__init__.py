"""Logs of JAX programs."""

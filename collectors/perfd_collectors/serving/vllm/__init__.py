"""Readers for vLLM: metrics, configuration over HTTP, logs."""

"""Readers for SGLang and mini-sglang: metrics, configuration over HTTP, logs."""

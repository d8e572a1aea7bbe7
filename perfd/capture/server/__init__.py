"""Captures of SGLang and vLLM servers through their profiling endpoints."""

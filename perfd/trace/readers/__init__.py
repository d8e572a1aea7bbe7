"""Readers of traces: Nsight Systems, PyTorch (Kineto) and JAX."""

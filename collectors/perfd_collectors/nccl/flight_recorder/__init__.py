"""Dumps of PyTorch's NCCL flight recorder."""

"""Stacks of hanging processes: py-spy and PyTorch's NCCL flight recorder."""

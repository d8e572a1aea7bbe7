"""NCCL operations: transfer against waiting, by rank, group and dimension, and who causes the waiting."""

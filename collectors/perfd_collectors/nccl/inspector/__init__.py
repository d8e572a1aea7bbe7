"""Output of NCCL's Inspector plugin."""

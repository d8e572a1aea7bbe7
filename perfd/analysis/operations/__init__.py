"""NCCL operations matched across ranks: transfer against waiting, rates, and their arrangement in steps."""

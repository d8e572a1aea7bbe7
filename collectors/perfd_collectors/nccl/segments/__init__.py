"""The shared memory that perfd's NCCL plugin writes: one segment per process."""

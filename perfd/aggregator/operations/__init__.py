"""The NCCL operations held per job, as arrays."""

"""Captures of a SLURM job without agents: one short step of the job does what agents would."""

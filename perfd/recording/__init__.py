"""Recordings: one run of a job as an agent saw it, on disk."""

"""Logs to Weights & Biases, one process per run."""

"""Logs to Weights & Biases, all runs in one process."""

from perfd.exporters.wandb.wandb_exporter import WandbExporter

__all__ = [
    "WandbExporter",
]

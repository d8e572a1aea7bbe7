"""Logs to Weights & Biases, one process per run."""

from perfd.exporters.wandb.wandb_exporter import WandbExporter

__all__ = [
    "WandbExporter",
]

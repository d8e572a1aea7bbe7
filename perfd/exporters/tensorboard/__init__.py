"""Writes TensorBoard event files."""

from perfd.exporters.tensorboard.tensorboard_exporter import TensorBoardExporter

__all__ = [
    "TensorBoardExporter",
]

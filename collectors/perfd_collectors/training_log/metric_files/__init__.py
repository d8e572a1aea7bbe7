"""Steps from the files that a job's loggers write: TensorBoard, W&B, Lightning's CSV."""

from perfd_collectors.training_log.metric_files.metric_file_steps import (
    MetricFileParser,
    is_metric_file,
    metric_file_reader,
)
from perfd_collectors.training_log.metric_files.wandb_run import WandbRunParser

__all__ = ["MetricFileParser", "WandbRunParser", "is_metric_file", "metric_file_reader"]

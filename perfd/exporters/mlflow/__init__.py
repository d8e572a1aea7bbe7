"""Logs to an MLflow tracking server."""

from perfd.exporters.mlflow.mlflow_exporter import MlflowExporter

__all__ = ["MlflowExporter"]

"""Describes a job's model where its log does not: by its arguments, `config.json`, XLA's dump, or by hand."""

from __future__ import annotations

from perfd.collector import CollectorSpec
from perfd_collectors.model_config.collector import (
    ModelConfigCollector,
    ModelConfigOptions,
    check_options,
)
from perfd_collectors.model_config.hf_config import ModelConfigError, model_shape

__all__ = ["SPEC", "ModelConfigError", "ModelConfigOptions", "check_options", "model_shape"]

SPEC = CollectorSpec(
    name="model_config", options=ModelConfigOptions, create=ModelConfigCollector, interval_s=5.0
)

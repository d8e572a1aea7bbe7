"""One parser per family of log formats."""

from perfd_collectors.training_log.formats.column_tables import ColumnTableParser
from perfd_collectors.training_log.formats.composer import ComposerParser
from perfd_collectors.training_log.formats.deepspeed import DeepSpeedParser
from perfd_collectors.training_log.formats.epoch_lines import EpochLineParser
from perfd_collectors.training_log.formats.failures import FailureParser
from perfd_collectors.training_log.formats.huggingface import HuggingFaceParser
from perfd_collectors.training_log.formats.jax import MaxTextParser, MetricWriterParser
from perfd_collectors.training_log.formats.json_lines import JsonLineParser
from perfd_collectors.training_log.formats.nanotron import NanotronParser
from perfd_collectors.training_log.formats.nccl_lines import NcclLineParser
from perfd_collectors.training_log.formats.nemo import NemoParser
from perfd_collectors.training_log.formats.own_patterns import OwnPatternParser, compiled_pattern
from perfd_collectors.training_log.formats.progress_bar import ProgressBarParser
from perfd_collectors.training_log.formats.reinforcement import (
    OpenRlhfParser,
    ResultBlockParser,
    SlimeParser,
    VerlParser,
)
from perfd_collectors.training_log.formats.step_blocks import StepBlockParser
from perfd_collectors.training_log.formats.step_lines import StepLineParser
from perfd_collectors.training_log.formats.torchtitan import TorchtitanParser

__all__ = [
    "ColumnTableParser",
    "ComposerParser",
    "DeepSpeedParser",
    "EpochLineParser",
    "FailureParser",
    "HuggingFaceParser",
    "JsonLineParser",
    "MaxTextParser",
    "MetricWriterParser",
    "NanotronParser",
    "NcclLineParser",
    "NemoParser",
    "OpenRlhfParser",
    "OwnPatternParser",
    "ProgressBarParser",
    "ResultBlockParser",
    "SlimeParser",
    "StepBlockParser",
    "StepLineParser",
    "TorchtitanParser",
    "VerlParser",
    "compiled_pattern",
]

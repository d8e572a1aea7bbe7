"""One parser per family of log formats, in the order in which a line is offered to them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from perfd_collectors.training_log.format_parser import FormatParser, LogContext
from perfd_collectors.training_log.formats.column_tables import ColumnTableParser
from perfd_collectors.training_log.formats.composer import ComposerParser
from perfd_collectors.training_log.formats.deepspeed import DeepSpeedParser
from perfd_collectors.training_log.formats.epoch_lines import EpochLineParser
from perfd_collectors.training_log.formats.huggingface import HuggingFaceParser
from perfd_collectors.training_log.formats.jax.maxtext import MaxTextParser
from perfd_collectors.training_log.formats.jax.metric_writer import MetricWriterParser
from perfd_collectors.training_log.formats.json_lines import JsonLineParser
from perfd_collectors.training_log.formats.nanotron import NanotronParser
from perfd_collectors.training_log.formats.nemo import NemoParser
from perfd_collectors.training_log.formats.progress_bar import ProgressBarParser
from perfd_collectors.training_log.formats.reinforcement.openrlhf import OpenRlhfParser
from perfd_collectors.training_log.formats.reinforcement.result_blocks import ResultBlockParser
from perfd_collectors.training_log.formats.reinforcement.slime import SlimeParser
from perfd_collectors.training_log.formats.reinforcement.verl import VerlParser
from perfd_collectors.training_log.formats.step_blocks import StepBlockParser
from perfd_collectors.training_log.formats.step_lines import StepLineParser
from perfd_collectors.training_log.formats.torchtitan import TorchtitanParser
from perfd_collectors.training_log.megatron import MegatronParser

FORMATS: Mapping[str, Callable[[LogContext], FormatParser]] = {
    "nemo": NemoParser,
    "openrlhf": OpenRlhfParser,
    "slime": SlimeParser,
    "progress-bar": ProgressBarParser,
    "nanotron": NanotronParser,
    "megatron": MegatronParser,
    "torchtitan": TorchtitanParser,
    "verl": VerlParser,
    "hf-trainer": HuggingFaceParser,
    "deepspeed": DeepSpeedParser,
    "maxtext": MaxTextParser,
    "composer": ComposerParser,
    "metric-writer": MetricWriterParser,
    "result-blocks": ResultBlockParser,
    "column-tables": ColumnTableParser,
    "json-lines": JsonLineParser,
    "step-blocks": StepBlockParser,
    "epoch-lines": EpochLineParser,
    "step-lines": StepLineParser,
}
"""By name, as in the option `framework`. A line goes to the first parser that accepts it."""

COMPANIONS: Mapping[str, Sequence[str]] = {"hf-trainer": ("progress-bar",)}
"""Formats without which another one is not complete."""

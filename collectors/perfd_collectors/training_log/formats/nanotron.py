"""nanotron's iteration line: pairs between bars, numbers with a suffix."""

from __future__ import annotations

import re
from collections.abc import Sequence

from perfd.model import MemoryReport
from perfd_collectors.training_log.field_text import fields, with_suffix
from perfd_collectors.training_log.format_parser import FormatParser
from perfd_collectors.training_log.log_lines import LogLine
from perfd_collectors.training_log.parser_output import training_step
from perfd_collectors.training_log.timestamps import last_timestamp_ns

_ANCHOR = re.compile(r"\biteration: (\d{1,15}) / (\d{1,15}) \|", re.ASCII)
_FIELDS = {
    "consumed_tokens": ("consumed_tokens", 0),
    "consumed_samples": ("consumed_samples", 0),
    "elapsed_time_per_iteration_ms": ("step_time_s", -3),
    "time_per_iteration_ms": ("step_time_s", -3),
    "tokens_per_sec": ("tokens_per_s", 0),
    "global_batch_size": ("global_batch_size", 0),
    "lr": ("learning_rate", 0),
    "model_tflops_per_gpu": ("flops_per_s_per_gpu", 12),
    "grad_norm": ("grad_norm", 0),
}
_MUST_BE_POSITIVE = frozenset({"step_time_s", "tokens_per_s", "flops_per_s_per_gpu"})
_MEMORY = {"cuda_memory_allocated": "allocated_bytes", "cuda_max_memory_reserved": "max_reserved_bytes"}


class NanotronParser(FormatParser):
    """One log of a nanotron job."""

    keywords: Sequence[bytes] = (b"iteration: ",)

    def parse(self, line: LogLine) -> bool:
        anchor = _ANCHOR.search(line.text) if line.complete else None
        if anchor is None:
            return False
        self._out.describe(framework="nanotron", train_steps=int(anchor[2]))
        values: dict[str, float] = {}
        losses: dict[str, float] = {}
        memory: dict[str, float] = {}
        extras: dict[str, float] = {}
        for key, text in fields(line.text[anchor.end() :], complete=True):
            value = with_suffix(text)
            if value is None:
                continue
            if key in _FIELDS:
                name, power = _FIELDS[key]
                if value > 0 or name not in _MUST_BE_POSITIVE:
                    values[name] = with_suffix(text, power) or 0.0
            elif key in _MEMORY:
                memory[_MEMORY[key]] = value
            else:
                (losses if "loss" in key else extras)[key] = value
        batch, time_s = values.get("global_batch_size"), values.get("step_time_s")
        if batch:
            self._out.describe_layout(global_batch_size=int(batch))
            if time_s:
                values["samples_per_s"] = batch / time_s
        step = training_step(self._out.job, int(anchor[1]), values, losses, extras)
        self._steps.add(step, last_timestamp_ns(line.text[: anchor.start()]))
        if memory:
            self._out.add(MemoryReport(job=self._out.job, step=int(anchor[1]), rank=line.rank, **memory))
        return True

"""nanotron's iteration line: pairs between bars, numbers with a suffix."""

from __future__ import annotations

import re
from collections.abc import Sequence

from perfd_collectors.training_log.format_parser import FormatParser, LogLine
from perfd_collectors.training_log.printed_fields import fields, sorted_fields, with_suffix
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
_MEMORY = {"cuda_memory_allocated": "allocated_bytes", "cuda_max_memory_reserved": "max_reserved_bytes"}


class NanotronParser(FormatParser):
    """One log of a nanotron job."""

    takes_damaged = True
    keywords: Sequence[bytes] = (b"iteration: ",)

    def parse(self, line: LogLine) -> bool:
        anchor = _ANCHOR.search(line.text)
        if anchor is None:
            return False
        self._out.describe(framework="nanotron", train_steps=int(anchor[2]))
        pairs = fields(line.text[anchor.end() :], complete=True)
        values, losses, extras = sorted_fields(pairs, _FIELDS, with_suffix)
        memory = {name: extras.pop(key, None) for key, name in _MEMORY.items()}
        batch, time_s = values.get("global_batch_size"), values.get("step_time_s")
        if batch:
            self._out.describe_layout(global_batch_size=int(batch))
            if time_s:
                values["samples_per_s"] = batch / time_s
        printed_ns = last_timestamp_ns(line.text[: anchor.start()])
        self._add_step(int(anchor[1]), values, losses, extras, printed_ns=printed_ns)
        self._out.memory(int(anchor[1]), line.rank, **memory)
        return True

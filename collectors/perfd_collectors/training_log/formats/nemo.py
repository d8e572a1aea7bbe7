"""NeMo: the progress line of NeMo 2, and the progress bar of NeMo 1."""

from __future__ import annotations

import re
from collections.abc import Sequence

from perfd.model import EventKind
from perfd_collectors.training_log.format_parser import FormatParser, LogLine
from perfd_collectors.training_log.printed_fields import fields, integer, positive, sorted_fields

_ANCHOR = re.compile(r"Training epoch \d+, iteration (\d{1,15})/(\d{1,15}) \|", re.ASCII)
_BAR = re.compile(
    r"Epoch \d{1,9}: [^\[E]{0,400}\| {1,40}(\d{1,15})/(\d{1,15}) \[[^\],]{0,60}, {1,8}"
    r"([\d.?]{1,20})(s/it|it/s), ((?:(?!Epoch ).)*)\]",
    re.ASCII,
)
_PROFILER = re.compile(r"={3} (Start|End) nsys profiling ={3}")
_FIELDS = {
    "lr": ("learning_rate", 0),
    "train_step_timing in s": ("step_time_s", 0),
    "tflops_per_gpu": ("flops_per_s_per_gpu", 12),
    "TFLOPS_per_GPU": ("flops_per_s_per_gpu", 12),
    "global_batch_size": ("global_batch_size", 0),
    "consumed_samples": ("consumed_samples", 0),
    "grad_norm": ("grad_norm", 0),
}


class NemoParser(FormatParser):
    """One log of a NeMo job. Steps are numbered from 0, as NeMo prints them."""

    keywords: Sequence[bytes] = (b"Training epoch ", b"reduced_train_loss=", b"nsys profiling ==")

    def parse(self, line: LogLine) -> bool:
        return self._line(line.text) or self._bar(line.text) or self._profiler(line.text)

    def _line(self, text: str) -> bool:
        anchor = _ANCHOR.search(text)
        if anchor is None or not text.isascii():
            return False
        pairs = dict(fields(text[anchor.end() :], complete=True))
        self._add(int(anchor[1]), pairs, last_step=int(anchor[2]))
        return True

    def _bar(self, text: str) -> bool:
        match = _BAR.search(text)
        if match is None or not match[5].isascii():
            return False
        pairs = dict(pair.strip().split("=", 1) for pair in match[5].split(",") if "=" in pair)
        if not {"reduced_train_loss", "global_step"} <= pairs.keys():
            return False
        rate = positive(match[3])
        if rate is not None and "train_step_timing in s" not in pairs:
            # The bar's own rate, an average over the last steps.
            pairs["train_step_timing in s"] = repr(rate if match[4] == "s/it" else 1 / rate)
        self._add(int(match[1]), pairs, last_step=None)
        return True

    def _add(self, iteration: int, pairs: dict[str, str], *, last_step: int | None) -> None:
        self._out.describe(framework="nemo", train_steps=None if last_step is None else last_step + 1)
        step = integer(pairs.pop("global_step", str(iteration)))
        values, losses, extras = sorted_fields(pairs.items(), _FIELDS)
        if step is None:
            return
        batch, time_s = values.get("global_batch_size"), values.get("step_time_s")
        if batch:
            self._out.describe_layout(global_batch_size=int(batch))
            if time_s:
                values["samples_per_s"] = batch / time_s
        self._add_step(step, values, losses, extras)

    def _profiler(self, text: str) -> bool:
        match = _PROFILER.search(text)
        if match is not None:
            message = f"{match[1]} of an Nsight Systems profile."
            self._out.event(EventKind.PROFILE, message, step=self._steps.last_step)
        return match is not None

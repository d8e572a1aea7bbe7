"""torchtitan's metrics line, and its description of the run."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from perfd.model import EventKind
from perfd_collectors.training_log.format_parser import FormatParser, LogContext, LogLine
from perfd_collectors.training_log.printed_fields import grouped, number
from perfd_collectors.training_log.timestamps import last_timestamp_ns

_GIB = 1024.0**3
"""Bytes per GiB."""
_STEP = re.compile(r"(?<!validate )\bstep: +(\d{1,15})  ", re.ASCII)
_VALIDATE = re.compile(r"\bvalidate step: +(\d{1,15})  ", re.ASCII)
_PAIR = re.compile(r"(?<=  )([a-z_/]+): +(\S+)(?=  |\s*$)", re.ASCII)
_MEMORY = re.compile(r"([\d.]+)GiB\(([\d.]+)%\)", re.ASCII)
_SHARE = re.compile(r"([\d.]+)%", re.ASCII)
# Sizes are on the start line or on an earlier one; their wording depends on the version.
_BEGIN = re.compile(r"Training starts at step (\d{1,15})(?=[,.]|\s*$)", re.ASCII)
_SETTING = re.compile(
    r"(local batch size|global batch size|sequence length|maximum context length|total steps) (\d{1,15})"
    r"(?=,| \(|\s*$)",
    re.ASCII,
)
_TOKENS = re.compile(r"(?<!\S)(\d{1,15}) tokens per train step", re.ASCII)
_MESH = re.compile(r"Building \d+-D device mesh with \[((?:'\w+'(?:, )?)+)\], \[([\d, ]+)\]", re.ASCII)
_PARALLELISM = re.compile(
    r"Building device mesh with parallelism: (\w+=\d+(?:, \w+=\d+)*)(?:, )?\s*$", re.ASCII
)
_PIPELINE = re.compile(r"pipeline schedule \S+ with (\d{1,15}) microbatches and (\d{1,15}) stages", re.ASCII)
_SIZE = re.compile(r"\bsize: ([\d,]+) total parameters", re.ASCII)
_SAVING = "Saving the checkpoint"
_CHECKPOINT = re.compile(r"Finished saving the checkpoint (?:(?!Finished ).)*?in ([\d.]+) seconds", re.ASCII)
_PROFILE = re.compile(r"Dumping (?:profiler )?traces at step (\d{1,15})\b(?=\s*$)", re.ASCII)
_WORLD_DIMENSIONS = frozenset({"pp", "dp", "dp_replicate", "dp_shard", "cp", "tp"})
"""Dimensions whose product is the world size; expert parallelism reuses their ranks."""


class TorchtitanParser(FormatParser):
    """One log of a torchtitan job; all ranks that log print the same line."""

    takes_damaged = True
    keywords: Sequence[bytes] = (
        b"step: ",
        b"Training ",
        b"Trainer is initialized",
        b"device mesh with",
        b"pipeline schedule",
        b" total parameters",
        b"saving the checkpoint",
        b"traces at step",
    )

    def __init__(self, job: LogContext) -> None:
        super().__init__(job)
        self._sequence: int | None = None
        self._batch: int | None = None
        self._tokens: int | None = None
        self._micro_batches: int | None = None
        """Micro-batches per rank's batch in the pipeline."""

    def parse(self, line: LogLine) -> bool:
        return self._step(line) or self._validate(line.text) or self._about(line.text)

    def _step(self, line: LogLine) -> bool:
        anchor = _STEP.search(line.text)
        if anchor is None:
            return False
        pairs = dict(_PAIR.findall(line.text, anchor.end()))
        if "loss" not in pairs or not pairs.keys() & {"memory", "tps"}:
            return False
        self._out.describe(framework="torchtitan", logged_flops_convention="torchtitan")
        step = int(anchor[1])
        self._rates(step, pairs, last_timestamp_ns(line.text[: anchor.start()]))
        if (memory := _MEMORY.fullmatch(pairs.get("memory", ""))) and (size := number(memory[1])) is not None:
            self._out.memory(step, line.rank, max_reserved_bytes=size * _GIB)
        return True

    def _rates(self, step: int, pairs: Mapping[str, str], printed_ns: int | None) -> None:
        loss = number(pairs["loss"])
        per_gpu = grouped(pairs.get("tps", ""))
        mfu = _SHARE.fullmatch(pairs.get("mfu", ""))
        if mfu:
            # torchtitan always divides by the BF16 peak, and prints N/A for quantized training.
            self._out.describe(precision="bf16")
        world = self._out.description.parallel.world_size
        # `tps` is per GPU: ranks that share tokens (tensor, context, pipeline parallel) divide them.
        tokens_per_s = per_gpu * world if per_gpu and world else None
        tokens = self._tokens
        known = {"loss", "tflops", "tps", "mfu", "memory", "grad_norm"}
        extras = {
            name: value
            for name, text in pairs.items()
            if name not in known and (value := number(text)) is not None
        }
        if per_gpu is not None:
            extras["tps"] = per_gpu
        values = {
            "step_time_s": tokens / tokens_per_s if tokens and tokens_per_s else None,
            "flops_per_s_per_gpu": number(pairs.get("tflops", "").replace(",", ""), 12),
            "tokens_per_s": tokens_per_s,
            "samples_per_s": tokens_per_s / self._sequence if tokens_per_s and self._sequence else None,
            "global_batch_size": self._batch,
            "grad_norm": number(pairs.get("grad_norm", "")),
            "mfu_ratio": number(mfu[1], -2) if mfu else None,
        }
        losses = {} if loss is None else {"loss": loss}
        self._add_step(step, values, losses, extras, printed_ns=printed_ns)

    def _validate(self, text: str) -> bool:
        anchor = _VALIDATE.search(text)
        if anchor is None:
            return False
        pairs = _PAIR.findall(text, anchor.end())
        values = {name: value for name, figure in pairs if (value := grouped(figure)) is not None}
        step = int(anchor[1])
        self._out.event(
            EventKind.EVALUATION,
            f"Validation at step {step}.",
            printed_ns=last_timestamp_ns(text[: anchor.start()]),
            step=step,
            values=values,
        )
        return True

    def _about(self, text: str) -> bool:
        if "Trainer is initialized" in text or _BEGIN.search(text):
            self._settings(text)
            self._begin(text)
        elif match := _MESH.search(text):
            names = [name.strip("'") for name in match[1].split(", ")]
            self._mesh(names, match[2].split(", "))
        elif match := _PARALLELISM.search(text):
            pairs = [pair.split("=") for pair in match[1].split(", ")]
            self._mesh([name for name, _ in pairs], [size for _, size in pairs])
        elif match := _PIPELINE.search(text):
            self._pipeline(micro_batches=int(match[1]), stages=int(match[2]))
        elif "Training completed" in text:
            self._event(EventKind.JOB_ENDED, "Training is done.", text, None, None)
        elif match := _SIZE.search(text):
            self._out.describe(parameters=grouped(match[1]))
        elif match := _CHECKPOINT.search(text):
            message = "A checkpoint was saved."
            self._event(EventKind.CHECKPOINT, message, text, self._steps.last_step, number(match[1]))
        elif _SAVING in text:
            message = "Saving a checkpoint."
            self._event(EventKind.CHECKPOINT_STARTED, message, text, self._steps.last_step, None)
        elif match := _PROFILE.search(text):
            self._event(EventKind.PROFILE, "A profile was written.", text, int(match[1]), None)
        else:
            return False
        return True

    def _event(
        self, kind: EventKind, message: str, text: str, step: int | None, duration_s: float | None
    ) -> None:
        self._out.event(kind, message, printed_ns=last_timestamp_ns(text), step=step, duration_s=duration_s)

    def _settings(self, text: str) -> None:
        found = {name: int(size) for name, size in _SETTING.findall(text)}
        tokens = _TOKENS.search(text)
        self._sequence = found.get("sequence length", found.get("maximum context length", self._sequence))
        self._batch = found.get("global batch size", self._batch)
        if tokens is not None:
            self._tokens = int(tokens[1])
        elif self._batch and self._sequence:
            self._tokens = self._batch * self._sequence
        self._out.describe(framework="torchtitan", train_steps=found.get("total steps"))
        self._out.describe_layout(
            micro_batch_size=self._micro_batch(found.get("local batch size")),
            global_batch_size=found.get("global batch size"),
        )

    def _micro_batch(self, local: int | None) -> int | None:
        """A pipeline splits a rank's batch further, by a number that only its own line has."""
        if (self._out.description.parallel.pp or 1) == 1:
            return local
        return local // self._micro_batches if local and self._micro_batches else None

    def _begin(self, text: str) -> None:
        match = _BEGIN.search(text)
        if match is not None:
            self._steps.started(last_timestamp_ns(text[: match.start()]))
            if int(match[1]) > 1:
                self._steps.resumed(int(match[1]) - 1)

    def _pipeline(self, *, micro_batches: int, stages: int) -> None:
        """`stages` counts the model chunks of all ranks of a pipeline."""
        self._micro_batches = micro_batches or None
        ranks = self._out.description.parallel.pp
        if ranks and stages % ranks == 0:
            self._out.describe_layout(vp=stages // ranks)

    def _mesh(self, names: list[str], sizes: list[str]) -> None:
        if len(names) != len(sizes) or not all(size.isdigit() for size in sizes):
            return
        dimensions = {name: int(size) for name, size in zip(names, sizes, strict=True)}
        world = data = 1
        for name in _WORLD_DIMENSIONS & dimensions.keys():
            world *= dimensions[name]
            if name.startswith("dp"):
                data *= dimensions[name]
        self._out.describe_layout(
            world_size=world,
            dp=data,
            pp=dimensions.get("pp", 1),
            tp=dimensions.get("tp", 1),
            cp=dimensions.get("cp", 1),
            ep=dimensions.get("ep"),
        )

"""Builds a Megatron job's description from its log."""

from __future__ import annotations

import re
from collections.abc import Mapping

from perfd_collectors.training_log.megatron import megatron_arguments as options
from perfd_collectors.training_log.megatron import megatron_reports as reports
from perfd_collectors.training_log.parser_output import ParserOutput

_CAUSAL = "megatron-causal"
_FULL = "megatron-full"
_DEEPSPEED = "megatron-deepspeed"
"""24 B s l h^2 (1 + s/6h + V/16lh) times 3, or times 4 with recomputation, which is not model FLOPs."""
_FIRST_CAUSAL_CORE = (0, 12)
"""The first Megatron-Core release that counts attention as causal."""


class MegatronDescription:
    """Parses the lines printed at a job's start, and adds them to its description."""

    def __init__(self, out: ParserOutput) -> None:
        self._out = out
        self._dump = options.ArgumentsDump()
        self._shards: dict[tuple[int, ...], int] = {}
        self._vocab_size: int | None = None

    @property
    def in_dump(self) -> bool:
        """Whether the next line may be a row of the arguments dump."""
        return self._dump.open

    def framework(self, name: str) -> None:
        """Set the framework; the name of a fork replaces the common one."""
        current = self._out.description.framework
        if not current or (current == "megatron-lm" and name != current):
            self._out.describe(framework=name)

    def row_of_dump(self, text: str) -> tuple[bool, Mapping[str, str] | None]:
        """Whether the line belongs to the dump, and the options if it is the last one."""
        taken, arguments = self._dump.parse(text)
        if arguments is not None:
            self._add_arguments(arguments)
        return taken, arguments

    def line(self, text: str) -> bool:
        """Parse any other line of the start; returns False when it is none."""
        if (vocab := reports.padded_vocab(text)) is not None:
            self._vocab_size = vocab
            self._describe_model()
        elif (sizes := reports.world(text)) != {}:
            self._out.describe_layout(**sizes)
        elif (version := reports.core_version(text)) is not None:
            self._set_version(version)
        elif (memory := reports.theoretical_memory(text)) != {}:
            self._out.add_arguments(memory)
        elif (total := reports.total_parameters(text)) is not None:
            if self._exact_parameters() is None:
                self._out.describe(parameters=total)
        elif (shard := reports.shard_parameters(text)) is not None:
            self._shards[shard[0]] = shard[1]
            self._out.describe(parameters=self._exact_parameters())
        else:
            return "umber of parameters " in text
        self.framework("megatron-lm")
        return True

    def identify(self, fork: str | None, train_steps: int | None, *, causal: bool) -> None:
        """Note what an iteration line shows: the fork, its steps, and if attention counts as causal."""
        self.framework(fork or "megatron-lm")
        self._out.describe(train_steps=train_steps)
        if fork in {"megatron-deepspeed", "gpt-neox"}:
            self._out.describe(logged_flops_convention=_DEEPSPEED)
        elif causal and not fork and self._out.description.logged_flops_convention is None:
            self._out.describe(logged_flops_convention=_CAUSAL)

    def _add_arguments(self, arguments: Mapping[str, str]) -> None:
        self.framework("megatron-lm")
        self._out.add_arguments(arguments)
        self._out.describe(
            precision=options.precision(arguments),
            recompute=options.recompute(arguments),
            recompute_layers=options.integer_if_known(arguments, "recompute_num_layers"),
            train_steps=options.integer_if_known(arguments, "train_iters"),
            log_interval_steps=options.integer_if_known(arguments, "log_interval"),
        )
        self._out.describe_layout(**options.layout(arguments))
        self._describe_model()
        if self._out.description.logged_flops_convention is None:
            # The option appeared in core 0.12, the first to count attention as causal.
            self._out.describe(logged_flops_convention=_CAUSAL if "mtp_num_layers" in arguments else _FULL)

    def _describe_model(self) -> None:
        arguments = self._out.description.arguments
        if all(name in arguments for name in ("num_layers", "hidden_size")):
            self._out.describe(model=options.model_shape(arguments, self._vocab_size))

    def _exact_parameters(self) -> float | None:
        """Parameters of an unsharded model; None for shards, which contain tied embeddings twice."""
        layout = self._out.description.parallel
        whole = layout.tp == 1 and layout.pp == 1 and layout.ep in {None, 1}
        return float(next(iter(self._shards.values()))) if whole and len(self._shards) == 1 else None

    def _set_version(self, version: str) -> None:
        self._out.describe(framework_version=version)
        match = re.match(r"(\d{1,15})\.(\d{1,15})", version)
        if match:
            causal = (int(match[1]), int(match[2])) >= _FIRST_CAUSAL_CORE
            self._out.describe(logged_flops_convention=_CAUSAL if causal else _FULL)

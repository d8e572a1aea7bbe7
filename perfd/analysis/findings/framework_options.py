"""What each framework calls what an advice asks for: only options that the job has not set already."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache
from importlib.resources import files

import msgspec.toml


class OptionsOf(StrEnum):
    """Whose options an advice may name; the values are as reports write them."""

    MEGATRON = "Megatron-LM"
    DEEPSPEED = "DeepSpeed"
    HF_TRAINER = "Trainer"
    LIGHTNING = "Lightning"
    FSDP = "FSDP2"
    DDP = "DDP"
    JAX = "JAX"


@dataclass(frozen=True, slots=True, kw_only=True)
class Software:
    """What runs a job, if known."""

    framework: OptionsOf | None = None
    arguments: Mapping[str, str] = field(default_factory=dict)
    """As the job printed them; empty when it did not."""


class OptionTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The file of options, whose head says how to read it."""

    sources: Mapping[OptionsOf, str]
    options: Mapping[str, Mapping[OptionsOf, tuple[str, ...]]]
    """By what an advice names in double brackets; a framework without an entry gets general words."""


@cache
def option_table() -> OptionTable:
    """All options, from `perfd/data/framework_options.toml`."""
    content = files("perfd").joinpath("data", "framework_options.toml").read_bytes()
    return msgspec.toml.decode(content, type=OptionTable)


_NAMES: Mapping[str, OptionsOf] = {
    "megatron": OptionsOf.MEGATRON,
    "deepspeed": OptionsOf.DEEPSPEED,
    "hf-trainer": OptionsOf.HF_TRAINER,
    "lightning": OptionsOf.LIGHTNING,
    "torchtitan": OptionsOf.FSDP,
    "jax": OptionsOf.JAX,
    "maxtext": OptionsOf.JAX,
    "clu": OptionsOf.JAX,
}
"""By the beginning of a log's framework. One that is not here has other options: none is named."""
_LOOPS = frozenset({"", "perfd.hook", "training-loop", "nanogpt", "nanochat", "litgpt", "torchtune"})
"""Custom loops, which use PyTorch's FSDP or DDP."""
_SHARDED = frozenset({"ReduceScatter", "AllGather"})

_PLACE = re.compile(r"\s?\[\[(\w+)\]\]")
_UNSET = frozenset({"", "none", "false", "0"})
_OLDER: Mapping[str, tuple[str, ...]] = {
    "--cuda-graph-impl local": ("--enable-cuda-graph", "--external-cuda-graph"),
}
"""What an option was before: it is set by any of these, and named as the first where only that is known."""
_ANY_VALUE = frozenset({"cuda_graph_impl"})
"""Arguments of which each value but none will do."""
_OPPOSITES: Mapping[str, str] = {"no_barrier_with_level_1_timing": "barrier_with_L1_time"}
"""Options that set an argument of another name to False."""
_COUNTS = frozenset(
    {"num_workers", "dataloader_num_workers", "dataloader_prefetch_factor", "gradient_accumulation_steps"}
)
"""Arguments that are never set for good: there may be more of it."""


def software_of(framework: str | None, arguments: Mapping[str, str], operations: Iterable[str]) -> Software:
    """What runs a job: by its log's framework, else by the collectives of a PyTorch loop."""
    name = (framework or "").lower()
    known = next((one for start, one in _NAMES.items() if name.startswith(start)), None)
    if known is None and name in _LOOPS:
        seen = set(operations)
        if seen >= _SHARDED:
            known = OptionsOf.FSDP
        elif "AllReduce" in seen:
            known = OptionsOf.DDP
    return Software(framework=known, arguments=arguments)


def fitted(advice: str, software: Software) -> str:
    """The advice with options of that framework that are not set yet, in parentheses, for each `[[name]]`."""

    def options(found: re.Match[str]) -> str:
        left = unset_options(found[1], software)
        return f" ({software.framework}: {', '.join(left)})" if left else ""

    return _PLACE.sub(options, advice)


def unset_options(name: str, software: Software) -> tuple[str, ...]:
    """The options of that framework under that name which the job has not set; empty where none is known."""
    known = _of_framework(name, software)
    return tuple(shown for option in known if (shown := _unset(option, software.arguments)))


def is_set(name: str, software: Software) -> bool:
    """Whether the job has set all that its framework has under that name; False where that is not known."""
    return bool(_of_framework(name, software)) and not unset_options(name, software)


def _of_framework(name: str, software: Software) -> tuple[str, ...]:
    return () if software.framework is None else option_table().options[name].get(software.framework, ())


def _unset(option: str, arguments: Mapping[str, str]) -> str | None:
    """The option as an advice shows it; None where the job's arguments say that it is set."""
    older = _OLDER.get(option, ())
    if any(arguments.get(_key(one), "").lower() not in _UNSET for one in older):
        return None
    name, wanted = _parts(option)
    if older and _key(option) not in arguments and _key(older[0]) in arguments:
        return older[0]
    value = arguments.get(_key(option), arguments.get(name))
    if (opposite := arguments.get(_OPPOSITES.get(_key(option), ""))) is not None:
        value = str(opposite.lower() in _UNSET)
    if value is None or value.lower() in _UNSET:
        return option
    if wanted and _key(option) not in _ANY_VALUE and wanted.strip('"').lower() != value.lower():
        return option
    return f"{option}, now {value}" if _key(option) in _COUNTS else None


def _parts(option: str) -> tuple[str, str]:
    """Its name as it is spelled, and the value that is meant."""
    name, _, wanted = re.sub(r"[ =(]", "=", option.removeprefix("--"), count=1).partition("=")
    return name, wanted


def _key(option: str) -> str:
    """Its name among a job's arguments."""
    return _parts(option)[0].replace("-", "_")

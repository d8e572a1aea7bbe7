"""Pieces of logs for tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import cache
from typing import TypeVar

from perfd.model import Record
from tests.support.whole_logs import parse_log

R = TypeVar("R", bound=Record)


def records_of(text: str | bytes, kind: type[R]) -> list[R]:
    """The records of one kind of a whole log."""
    data = text.encode() if isinstance(text, str) else text
    return [record for record in parse_log(data) if isinstance(record, kind)]


def iteration(
    step: int, *, ms: float = 2000.0, stamp: str = "2025-05-01 10:00:00", loss: str = "2.5E+00"
) -> str:
    """An iteration line as core 0.6 to 0.15 print it."""
    return (
        f" [{stamp}] iteration {step:8d}/     500 | consumed samples: {step * 64:12d} |"
        f" elapsed time per iteration (ms): {ms:.1f} | throughput per GPU (TFLOP/s/GPU): 400.5 |"
        f" learning rate: 1.000000E-04 | global batch size:    64 | lm loss: {loss} | loss scale: 1.0 |"
        " grad norm: 0.812 | number of skipped iterations:   0 | number of nan iterations:   0 |\n"
    )


def timers(
    rows: Mapping[str, tuple[float, float]],
    header: str = "(min, max) time across ranks (ms):",
    prefix: str = "",
) -> str:
    """A timer block as `--timing-log-option minmax` prints it."""
    lines = [f"{prefix}{header}\n"]
    lines += [
        f"{prefix}    {(name + ' ').ljust(48, '.')}: ({a:.2f}, {b:.2f})\n" for name, (a, b) in rows.items()
    ]
    return "".join(lines)


SMALL_MODEL: Mapping[str, object] = {
    "bf16": True,
    "context_parallel_size": 1,
    "data_parallel_size": 4,
    "expert_model_parallel_size": 1,
    "ffn_hidden_size": 8192,
    "fp16": False,
    "fp8": None,
    "global_batch_size": 64,
    "group_query_attention": False,
    "hidden_size": 2048,
    "kv_channels": 128,
    "log_interval": 10,
    "micro_batch_size": 2,
    "moe_layer_freq": 1,
    "moe_router_topk": 2,
    "multi_latent_attention": False,
    "num_attention_heads": 16,
    "num_experts": None,
    "num_layers": 24,
    "num_query_groups": 1,
    "pipeline_model_parallel_size": 1,
    "seq_length": 2048,
    "swiglu": False,
    "tensor_model_parallel_size": 1,
    "virtual_pipeline_model_parallel_size": None,
    "world_size": 4,
}


def dump(options: Mapping[str, object] | None = None, **changes: object) -> str:
    """An arguments dump; `changes` win over `options`, which by default is a small dense model."""
    merged = {**(SMALL_MODEL if options is None else options), **changes}
    rows = [f"  {name} {'.' * max(0, 48 - len(name))} {value}\n" for name, value in sorted(merged.items())]
    return (
        "------------------------ arguments ------------------------\n"
        + "".join(rows)
        + "-------------------- end of arguments ---------------------\n"
    )


@cache
def _fields(kind: type) -> Sequence[str]:
    return tuple(field.name for field in fields(kind)) if is_dataclass(kind) else ()


def values_of(records: Sequence[Record]) -> set[tuple[object, ...]]:
    """Every number that records say, each with what it is said of."""
    found: set[tuple[object, ...]] = set()

    def visit(path: tuple[object, ...], value: object) -> None:
        if isinstance(value, int | float | tuple):
            found.add((*path, value))
        elif value is None or isinstance(value, str):
            return
        elif names := _fields(type(value)):
            for name in names:
                visit((*path, name), getattr(value, name))
        elif isinstance(value, Mapping):
            for key, item in value.items():
                visit((*path, key), item)

    for record in records:
        visit((type(record).__name__, getattr(record, "step", None)), record)
    return found

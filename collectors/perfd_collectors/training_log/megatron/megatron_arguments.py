"""Megatron's arguments dump: options by name, and the model, layout and precision they describe."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from typing import Any

from perfd.model import MlaShape, ModelShape, MoeShape, Recompute

_BEGIN = "--- arguments ---"
_END = "--- end of arguments ---"
# Name, dots up to column 48, value; a longer name has no dots, hence two spaces.
_ROW = re.compile(r"\s*(\w+) (?:\.+(?: |$)| )((?:.*\S)?)\s*$", re.ASCII)
_MAX_ROWS = 5000
"""A longer dump has lost its end. Chosen, not measured."""
_MAX_LAYERS = 10_000
"""Bounds the evaluation of layer patterns from an untrusted log."""
_REQUIRED = ("num_layers", "tensor_model_parallel_size")


class ArgumentsDump:
    """Collects the rows of a dump. Interleaved dumps cannot be separated and are both dropped."""

    def __init__(self) -> None:
        self._rows: dict[str, str] = {}
        self._depth = 0
        self._invalid = False
        self._lines = 0

    @property
    def open(self) -> bool:
        """Whether the next line may be a row."""
        return self._depth > 0

    def parse(self, text: str) -> tuple[bool, Mapping[str, str] | None]:
        """Whether the line belongs to the dump, and the options if it is the last one."""
        if _BEGIN in text:
            self._invalid = self.open
            self._depth += 1
            self._rows = {}
            self._lines = 0
            return True, None
        if not self.open:
            return False, None
        if _END in text:
            self._depth -= 1
            usable = not self.open and not self._invalid and all(name in self._rows for name in _REQUIRED)
            return True, (self._rows if usable else None)
        self._lines += 1
        if self._lines > _MAX_ROWS:
            self._depth = 0
        match = _ROW.match(text)
        if "\ufffd" in text or not text.strip().isprintable():
            # Without this row the others may have another meaning.
            self._invalid = True
        if match is None:
            return False, None
        name, value = match.groups()
        if self._rows.setdefault(name, value) != value:
            self._invalid = True
        return True, None


def flag(arguments: Mapping[str, str], name: str) -> bool | None:
    """A boolean option; None when absent. Raises `ValueError` for any other value."""
    value = arguments.get(name, "None")
    if value not in {"True", "False", "None"}:
        raise ValueError(f"{name} is {value!r}, not True or False.")
    return None if value == "None" else value == "True"


def whole(arguments: Mapping[str, str], name: str) -> int | None:
    """An integer option; None when absent or None. Raises `ValueError` for any other value."""
    value = arguments.get(name, "None")
    if value == "None":
        return None
    if not (value.isascii() and value.isdigit()):
        raise ValueError(f"{name} is {value!r}, not an integer.")
    return int(value)


def integer_if_known(arguments: Mapping[str, str], name: str) -> int | None:
    """As `whole`, but None for any other value."""
    try:
        return whole(arguments, name)
    except ValueError:
        return None


def given(arguments: Mapping[str, str], name: str) -> str | None:
    """The option's value unless it is missing, empty, `None` or `False`."""
    value = arguments.get(name, "")
    return None if value in {"", "None", "False", "[]"} else value


_HETEROGENEOUS_MODELS = (
    "is_hybrid_model",
    "hybrid_override_pattern",
    "hybrid_layer_pattern",
    "linear_attention_freq",
    "experimental_attention_variant",
    "heterogeneous_layers_config_path",
    "heterogeneous_layers_config_encoded_json",
)
"""Options of models whose layers differ, which `ModelShape` cannot describe."""


_IMPLIED_OPTIONS = (
    ("num_query_groups", "group_query_attention"),
    ("group_query_attention", "swiglu"),
    ("moe_router_topk", "num_experts"),
)
"""Pairs: a dump with the first option also has the second, unless a row was lost."""


def model_shape(arguments: Mapping[str, str], vocab_size: int | None) -> ModelShape | None:
    """The model described by the options; None if a size is missing or the model is not supported."""
    if any(given(arguments, name) for name in _HETEROGENEOUS_MODELS):
        return None
    if any(first in arguments and second not in arguments for first, second in _IMPLIED_OPTIONS):
        return None
    try:
        return _transformer(arguments, vocab_size)
    except ValueError:
        return None


def _transformer(arguments: Mapping[str, str], vocab_size: int | None) -> ModelShape | None:
    layers = whole(arguments, "num_layers")
    hidden = whole(arguments, "hidden_size")
    heads = whole(arguments, "num_attention_heads")
    sequence = whole(arguments, "seq_length") or whole(arguments, "encoder_seq_length")
    groups = whole(arguments, "num_query_groups") if flag(arguments, "group_query_attention") else heads
    if not (layers and hidden and heads and sequence and groups):
        return None
    swiglu = bool(flag(arguments, "swiglu"))
    ffn = whole(arguments, "ffn_hidden_size") or _default_ffn(hidden, swiglu=swiglu)
    return ModelShape(
        layers=layers,
        hidden_size=hidden,
        ffn_size=ffn,
        attention_heads=heads,
        kv_heads=groups,
        head_size=whole(arguments, "kv_channels") or hidden // heads,
        sequence_length=sequence,
        vocab_size=vocab_size or whole(arguments, "padded_vocab_size"),
        gated_mlp=swiglu,
        attention_output_gate=bool(flag(arguments, "attention_output_gate")),
        moe=_moe(arguments, layers, ffn),
        mla=_mla(arguments),
        mtp_layers=whole(arguments, "mtp_num_layers") or 0,
    )


def _default_ffn(hidden: int, *, swiglu: bool) -> int:
    """Megatron's default: 4 h, and with SwiGLU two thirds of it, rounded down to a multiple of 64."""
    return int(4 * hidden * 2 / 3) // 64 * 64 if swiglu else 4 * hidden


def _moe(arguments: Mapping[str, str], layers: int, ffn: int) -> MoeShape | None:
    experts = whole(arguments, "num_experts")
    if experts is None:
        return None
    return MoeShape(
        experts=experts,
        top_k=whole(arguments, "moe_router_topk") or 2,
        expert_ffn_size=whole(arguments, "moe_ffn_hidden_size") or ffn,
        shared_expert_ffn_size=whole(arguments, "moe_shared_expert_intermediate_size") or 0,
        latent_size=whole(arguments, "moe_latent_size"),
        layer_pattern=layer_pattern(arguments.get("moe_layer_freq", "1"), layers),
    )


def _mla(arguments: Mapping[str, str]) -> MlaShape | None:
    if not flag(arguments, "multi_latent_attention"):
        return None
    kv_rank = whole(arguments, "kv_lora_rank")
    sizes = [whole(arguments, name) for name in ("qk_head_dim", "qk_pos_emb_head_dim", "v_head_dim")]
    if kv_rank is None or None in sizes:
        raise ValueError("The options of multi-head latent attention are incomplete.")
    qk, position, v = (size or 0 for size in sizes)
    return MlaShape(
        q_lora_rank=whole(arguments, "q_lora_rank"),
        kv_lora_rank=kv_rank,
        qk_head_dim=qk,
        qk_pos_emb_head_dim=position,
        v_head_dim=v,
    )


def layer_pattern(text: str, layers: int) -> Sequence[int]:
    """`moe_layer_freq` as one 0 or 1 per layer. Raises `ValueError` when it is invalid.

    It is an integer k (each k-th layer has experts, including the first), or a list, possibly
    written as a sum or product of lists: `([0]*3+[1]*58)`.
    """
    try:
        pattern = _evaluate(ast.parse(text.strip().strip("'\""), mode="eval").body)
    except (SyntaxError, RecursionError, MemoryError) as error:
        raise ValueError(f"Not a layer pattern: {text!r}.") from error
    if isinstance(pattern, int):
        if pattern < 1:
            raise ValueError(f"Not a layer frequency: {text!r}.")
        return tuple(int(layer % pattern == 0) for layer in range(layers))
    if len(pattern) != layers or any(mark not in {0, 1} for mark in pattern):
        raise ValueError(f"Not a pattern of {layers} layers: {text!r}.")
    return tuple(pattern)


def _evaluate(node: ast.expr) -> int | list[int]:
    """Evaluate the arithmetic of a layer pattern; nothing else is executed."""
    match node:
        case ast.Constant(value=int() as value) if not isinstance(value, bool):
            return value
        case ast.List(elts=elements) | ast.Tuple(elts=elements):
            marks = [_evaluate(element) for element in elements]
            if not all(isinstance(mark, int) for mark in marks):
                raise ValueError("A layer pattern has no nested lists.")
            return [mark for mark in marks if isinstance(mark, int)]
        case ast.BinOp(left=left, op=operation, right=right):
            return _combine(_evaluate(left), operation, _evaluate(right))
        case _:
            raise ValueError("A layer pattern has only integers, lists, + and *.")


def _combine(left: int | list[int], operation: ast.operator, right: int | list[int]) -> list[int]:
    match left, operation, right:
        case list(), ast.Add(), list():
            combined = left + right
        case (list() as marks, ast.Mult(), int() as times) | (int() as times, ast.Mult(), list() as marks):
            if times * len(marks) > _MAX_LAYERS:
                raise ValueError(f"A layer pattern has at most {_MAX_LAYERS:,} layers.")
            combined = marks * times
        case _:
            raise ValueError("A layer pattern has only integers, lists, + and *.")
    if len(combined) > _MAX_LAYERS:
        raise ValueError(f"A layer pattern has at most {_MAX_LAYERS:,} layers.")
    return combined


_LOW_PRECISION = {"None": None, "e4m3": "fp8", "hybrid": "fp8", "e2m1": "fp4"}


def precision(arguments: Mapping[str, str]) -> str | None:
    """The compute data type: the narrowest that is enabled; None when unclear."""
    try:
        narrow = _LOW_PRECISION[arguments.get("fp4", "None")] or _LOW_PRECISION[arguments.get("fp8", "None")]
        bf16, fp16 = flag(arguments, "bf16"), flag(arguments, "fp16")
    except (KeyError, ValueError):
        return None
    if narrow or bf16 is None or fp16 is None:
        return narrow
    return "bf16" if bf16 else "fp16" if fp16 else "fp32"


def recompute(arguments: Mapping[str, str]) -> Recompute | None:
    """What is recomputed in the backward pass; None when unknown."""
    if "recompute_granularity" in arguments:
        return {"full": Recompute.FULL, "selective": Recompute.SELECTIVE, "None": Recompute.NONE}.get(
            arguments["recompute_granularity"]
        )
    old = arguments.get("checkpoint_activations", "")
    return {"True": Recompute.FULL, "False": Recompute.NONE}.get(old)


def layout(arguments: Mapping[str, str]) -> dict[str, Any]:
    """The sizes of `ParallelLayout` in the options; None for missing ones."""
    names = {
        "world_size": "world_size",
        "tp": "tensor_model_parallel_size",
        "pp": "pipeline_model_parallel_size",
        "dp": "data_parallel_size",
        "cp": "context_parallel_size",
        "ep": "expert_model_parallel_size",
        "vp": "virtual_pipeline_model_parallel_size",
        "micro_batch_size": "micro_batch_size",
        "global_batch_size": "global_batch_size",
    }
    sizes = {field: integer_if_known(arguments, name) for field, name in names.items()}
    if sizes["vp"] is None and arguments.get("virtual_pipeline_model_parallel_size") == "None":
        sizes["vp"] = 1
    return sizes

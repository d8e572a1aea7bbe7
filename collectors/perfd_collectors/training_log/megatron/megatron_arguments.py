"""Megatron's arguments dump: options by name, and what they say about model, layout and precision."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from typing import Any

from perfd.model import MlaShape, ModelShape, MoeShape, Recompute

_BEGIN = "--- arguments ---"
_END = "--- end of arguments ---"
# Name, dots up to 48 columns, value; a name of 48 or more has no dots, hence two spaces.
_ROW = re.compile(r"\s*(\w+) (?:\.+(?: |$)| )(.*?)\s*$", re.ASCII)
_MAX_ROWS = 5000
_MAX_LAYERS = 10_000
_REQUIRED = ("num_layers", "tensor_model_parallel_size")


class ArgumentsDump:
    """Collects the rows of a dump. Two dumps at once cannot be told apart and are both given up."""

    def __init__(self) -> None:
        self._rows: dict[str, str] = {}
        self._depth = 0
        self._spoiled = False
        self._lines = 0

    @property
    def open(self) -> bool:
        """Whether the next line may be a row."""
        return self._depth > 0

    def parse(self, text: str) -> tuple[bool, Mapping[str, str] | None]:
        """Whether the line is the dump's, and the options when it is the dump's last."""
        if _BEGIN in text:
            self._spoiled = self.open
            self._depth += 1
            self._rows = {}
            self._lines = 0
            return True, None
        if not self.open:
            return False, None
        if _END in text:
            self._depth -= 1
            usable = not self.open and not self._spoiled and all(name in self._rows for name in _REQUIRED)
            return True, (self._rows if usable else None)
        self._lines += 1
        if self._lines > _MAX_ROWS:
            self._depth = 0
        match = _ROW.match(text)
        if "\ufffd" in text or not text.strip().isprintable():
            # Whatever row this was, the others may mean something else without it.
            self._spoiled = True
        if match is None:
            return False, None
        name, value = match.groups()
        if self._rows.setdefault(name, value) != value:
            self._spoiled = True
        return True, None


def flag(arguments: Mapping[str, str], name: str) -> bool | None:
    """A yes or no option, None when the dump does not have it; `ValueError` when it is something else."""
    value = arguments.get(name, "None")
    if value not in {"True", "False", "None"}:
        raise ValueError(f"{name} is {value!r}, not True or False.")
    return None if value == "None" else value == "True"


def whole(arguments: Mapping[str, str], name: str) -> int | None:
    """A whole number, None when the dump does not have it or says None; `ValueError` when it is no number."""
    value = arguments.get(name, "None")
    if value == "None":
        return None
    if not (value.isascii() and value.isdigit()):
        raise ValueError(f"{name} is {value!r}, not a whole number.")
    return int(value)


def whole_if_known(arguments: Mapping[str, str], name: str) -> int | None:
    """As `whole`, None too when it is no number."""
    try:
        return whole(arguments, name)
    except ValueError:
        return None


def given(arguments: Mapping[str, str], name: str) -> str | None:
    """The option's value unless it is missing, empty, `None` or `False`."""
    value = arguments.get(name, "")
    return None if value in {"", "None", "False", "[]"} else value


_BEYOND_A_SHAPE = (
    "is_hybrid_model",
    "hybrid_override_pattern",
    "hybrid_layer_pattern",
    "linear_attention_freq",
    "experimental_attention_variant",
    "heterogeneous_layers_config_path",
    "heterogeneous_layers_config_encoded_json",
)
"""Options of models whose layers are not all the same transformer layer; `ModelShape` cannot say those."""


_CAME_TOGETHER = (
    ("num_query_groups", "group_query_attention"),
    ("group_query_attention", "swiglu"),
    ("moe_router_topk", "num_experts"),
)
"""A dump with the first has the second too, so without it a row was lost."""


def model_shape(arguments: Mapping[str, str], vocab_size: int | None) -> ModelShape | None:
    """The model that the options describe; None when they leave out a size or describe something else."""
    if any(given(arguments, name) for name in _BEYOND_A_SHAPE):
        return None
    if any(first in arguments and second not in arguments for first, second in _CAME_TOGETHER):
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
        raise ValueError("The options of latent attention are incomplete.")
    qk, position, v = (size or 0 for size in sizes)
    return MlaShape(
        q_lora_rank=whole(arguments, "q_lora_rank"),
        kv_lora_rank=kv_rank,
        qk_head_dim=qk,
        qk_pos_emb_head_dim=position,
        v_head_dim=v,
    )


def layer_pattern(text: str, layers: int) -> Sequence[int]:
    """`moe_layer_freq` as one 0 or 1 per layer. Raises `ValueError` when it is no such thing.

    It is a whole number k (each k-th layer has experts, the first included), or a list, which
    may be written as a sum or product of lists: `([0]*3+[1]*58)`.
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
    """The little arithmetic of a layer pattern; nothing else is run."""
    match node:
        case ast.Constant(value=int() as value) if not isinstance(value, bool):
            return value
        case ast.List(elts=elements) | ast.Tuple(elts=elements):
            marks = [_evaluate(element) for element in elements]
            if not all(isinstance(mark, int) for mark in marks):
                raise ValueError("Lists in lists are no layer pattern.")
            return [mark for mark in marks if isinstance(mark, int)]
        case ast.BinOp(left=left, op=operation, right=right):
            return _combine(_evaluate(left), operation, _evaluate(right))
        case _:
            raise ValueError("Only numbers, lists, + and * make a layer pattern.")


def _combine(left: int | list[int], operation: ast.operator, right: int | list[int]) -> list[int]:
    match left, operation, right:
        case list(), ast.Add(), list():
            combined = left + right
        case (list() as marks, ast.Mult(), int() as times) | (int() as times, ast.Mult(), list() as marks):
            if times * len(marks) > _MAX_LAYERS:
                raise ValueError("A layer pattern with more layers than any model has.")
            combined = marks * times
        case _:
            raise ValueError("Only numbers, lists, + and * make a layer pattern.")
    if len(combined) > _MAX_LAYERS:
        raise ValueError("A layer pattern with more layers than any model has.")
    return combined


_NARROW = {"None": None, "e4m3": "fp8", "hybrid": "fp8", "e2m1": "fp4"}


def precision(arguments: Mapping[str, str]) -> str | None:
    """The compute type: the narrowest that the options ask for; None when they are not clear."""
    try:
        narrow = _NARROW[arguments.get("fp4", "None")] or _NARROW[arguments.get("fp8", "None")]
        bf16, fp16 = flag(arguments, "bf16"), flag(arguments, "fp16")
    except (KeyError, ValueError):
        return None
    if narrow or bf16 is None or fp16 is None:
        return narrow
    return "bf16" if bf16 else "fp16" if fp16 else "fp32"


def recompute(arguments: Mapping[str, str]) -> Recompute | None:
    """What the backward pass does again."""
    if "recompute_granularity" in arguments:
        return {"full": Recompute.FULL, "selective": Recompute.SELECTIVE, "None": Recompute.NONE}.get(
            arguments["recompute_granularity"]
        )
    old = arguments.get("checkpoint_activations", "")
    return {"True": Recompute.FULL, "False": Recompute.NONE}.get(old)


def layout(arguments: Mapping[str, str]) -> dict[str, Any]:
    """The sizes of `ParallelLayout` that the options name."""
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
    sizes = {field: whole_if_known(arguments, name) for field, name in names.items()}
    if sizes["vp"] is None and arguments.get("virtual_pipeline_model_parallel_size") == "None":
        sizes["vp"] = 1
    return sizes

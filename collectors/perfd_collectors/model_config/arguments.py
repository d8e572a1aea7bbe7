"""What the arguments of a training process say of its model: its `config.json`, lengths, precision."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

_MODEL = (
    "model_name_or_path",
    "model_config",
    "config_name",
    "model_path",
    "model_id",
    "pretrained_model",
    "model",
)
_LENGTH = (
    "sequence_length", "seq_length", "seq_len", "max_seq_length", "max_seq_len", "max_length", "block_size",
    "cutoff_len", "model_max_length",
)  # fmt: skip
_PRECISIONS = {"bf16": "bf16", "bfloat16": "bf16", "fp16": "fp16", "float16": "fp16", "fp8": "fp8"}
_PARTLY = (
    "use_peft",
    "use_lora",
    "lora",
    "lora_r",
    "lora_rank",
    "peft",
    "load_in_4bit",
    "load_in_8bit",
    "qlora",
)
"""Options with which most weights get no gradient, so that a step has fewer operations than counted."""
_PARTLY_VALUES = {"finetuning_type": "full", "train_type": "full", "tuner_type": "full", "freeze": "false"}
"""Options that mean the same unless they have this value."""
_OFF = frozenset({"false", "0", "no", "none"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelArguments:
    """None for what the arguments do not say."""

    model: str | None = None
    """A folder, a file, or a name on the hub."""
    sequence_length: int | None = None
    precision: str | None = None
    trains_all: bool = True
    """Whether all weights are trained, if the arguments are complete."""


def model_arguments(words: Sequence[str]) -> ModelArguments:
    """Read a command line: `--name value` and `--name=value`; the last of a repeated option counts."""
    options = _options(words)
    length = next((options[name] for name in _LENGTH if name in options), "")
    return ModelArguments(
        model=next((options[name] for name in _MODEL if options.get(name)), None),
        sequence_length=int(length) if length.isdecimal() and len(length) < 10 and int(length) else None,
        precision=_precision(options),
        trains_all=not _trains_part(options),
    )


def config_files(model: str, *, cwd: Path, environ: Mapping[str, str]) -> list[Path]:
    """Where the `config.json` of a model may be: in its folder, or in the hub's cache; patterns, in order."""
    folder = cwd / model
    found = [folder] if folder.suffix == ".json" else [folder / "config.json"]
    parts = model.split("/")
    if len(parts) == 2 and all(part and not part.startswith(".") for part in parts):
        home = environ.get("HF_HOME") or str(Path(environ.get("HOME", "/root"), ".cache/huggingface"))
        hub = Path(environ.get("HF_HUB_CACHE") or Path(home, "hub"))
        found.append(hub / f"models--{parts[0]}--{parts[1]}" / "snapshots" / "*" / "config.json")
    return found


def _options(words: Sequence[str]) -> dict[str, str]:
    options: dict[str, str] = {}
    for word, following in pairwise([*words, ""]):
        if not word.startswith("--"):
            continue
        name, equals, value = word[2:].partition("=")
        if not equals:
            value = "" if following.startswith("--") else following
        options[name.replace("-", "_").lower()] = value
    return options


def _on(options: Mapping[str, str], name: str) -> bool:
    return name in options and options[name].lower() not in _OFF


def _precision(options: Mapping[str, str]) -> str | None:
    for name in ("fp8", "bf16", "fp16"):
        if _on(options, name):
            return name
    for name in ("mixed_precision", "precision", "dtype", "torch_dtype"):
        value = (
            options.get(name, "").lower().removesuffix("_mixed").removesuffix("-mixed").removesuffix("-true")
        )
        if value in _PRECISIONS:
            return _PRECISIONS[value]
    return None


def _trains_part(options: Mapping[str, str]) -> bool:
    return any(_on(options, name) for name in _PARTLY) or any(
        name in options and options[name].lower() != full for name, full in _PARTLY_VALUES.items()
    )

"""`perfd parse`."""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

from perfd_collectors.nccl.debug_log import DebugLog
from perfd_collectors.training_log.log_document import LogDocument
from rich.console import Console
from rich.table import Table

from perfd.cli.terminal import Terminal
from perfd.cli.terminal_table import TerminalTable
from perfd.errors import PerfdError
from perfd.model import PhaseTime, TrainingStep

_PROBE_BYTES = 65536
"""Enough of a file to distinguish text from binary data."""
_MAX_TEXTLESS_RATIO = 0.1
"""Largest share of zero bytes: logs have none, except after a crash or a truncation."""
_SHOWN_STEPS = 10
"""Half of them from the beginning and half from the end."""
_SHOWN_EVENTS = 10
"""Printed; the number of the others is."""
_SHOWN_EXAMPLES = 5
"""Unrecognized lines shown, enough to see what they are."""
_STDIN = "-"
_HELP = """\
Shows what perfd reads from a training log: framework, model, layout, progress lines, phases, and lines that
look like progress but were not recognized. Several logs are read as one job, such as one file per rank. With
--json it prints one object, {"schema": "perfd.log/2", "framework", "model", "parallel", "steps": [...],
"unrecognized_lines", ...}; null is unknown. docs/formats/training-logs.md has all keys.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.description = _HELP
    parser.add_argument("logs", nargs="+", metavar="LOG", help="a file, or - for standard input")
    parser.add_argument("--json", action="store_true", help="print one object of schema perfd.log/2")
    parser.add_argument(
        "--framework", metavar="NAME", help="parse this format only (megatron, deepspeed, ...)"
    )
    parser.add_argument(
        "--pattern",
        action="append",
        default=[],
        metavar="REGEX",
        help=r"try an expression for custom lines, with groups such as (?P<step>\d{1,9}); may be repeated",
    )


def run(args: argparse.Namespace) -> int:
    """Print what was understood."""
    document = LogDocument(framework=args.framework, patterns=args.pattern)
    for name in args.logs:
        _read(name, document)
    if args.json:
        print(json.dumps(document.document(), indent=2, allow_nan=False))
    else:
        _show(document, Terminal())
    return 0


def _read(name: str, document: LogDocument) -> None:
    if name == _STDIN:
        document.read(sys.stdin.buffer)
        return
    path = Path(name)
    if path.is_dir():
        raise PerfdError(
            f"{name} is a directory: name the log files in it, for example {name.rstrip('/')}/*.log."
        )
    try:
        with path.open("rb") as log:
            _refuse_binary(name, log)
            document.read(log)
    except FileNotFoundError as error:
        raise PerfdError(f"{name} does not exist: name a log file, or - for standard input.") from error
    except OSError as error:
        raise PerfdError(f"{name} cannot be read: {error.strerror or error}.") from error


def _refuse_binary(name: str, log: BinaryIO) -> None:
    """Refuse binary files; a log with some garbage in it is still a log."""
    if not log.seekable():
        return
    probe = log.read(_PROBE_BYTES)
    log.seek(0)
    if probe.startswith(b"\x1f\x8b"):
        raise PerfdError(f"{name} is compressed: unpack it first, for example zcat {name} | perfd parse -.")
    if probe.count(0) > len(probe) * _MAX_TEXTLESS_RATIO:
        raise PerfdError(f"{name} is not text: name what the job printed, not a checkpoint or a trace.")


def _show(document: LogDocument, console: Console) -> None:
    description = document.description
    if not document.lines:
        console.print("The log is empty, or has no complete line yet.")
        return
    if description is None:
        console.print(
            "No known training log format. Name the step in the lines of your own training loop with "
            "`perfd parse --pattern` (docs/formats/training-logs.md), or report steps with perfd.hook "
            "(docs/hook.md); `perfd serving` reads logs of SGLang and vLLM."
        )
        _show_rest(document, console)
        return
    console.print(_about(document))
    if document.steps:
        console.print(_steps_table(document.steps))
    if document.phases:
        newest = document.phases[max(document.phases)]
        console.print(_phases_table(newest.step, newest.phases))
    for event in document.events[:_SHOWN_EVENTS]:
        at = "" if event.step is None else f" (step {event.step})"
        console.print(f"{event.kind}{at}: {event.message}", markup=False)
    hidden = len(document.events) - _SHOWN_EVENTS
    if hidden > 0:
        console.print(f"... and {hidden} more events")
    _show_rest(document, console)


def _about(document: LogDocument) -> Table:
    table = Table(show_header=False, box=None, pad_edge=False)
    description = document.description
    if description is None:
        return table
    model, layout = description.model, description.parallel
    table.add_row("framework", " ".join(filter(None, [description.framework, description.framework_version])))
    if model is not None:
        experts = f", {model.moe.experts} experts (top {model.moe.top_k})" if model.moe else ""
        table.add_row(
            "model",
            f"{model.layers} layers, hidden {model.hidden_size}, {model.attention_heads} heads "
            f"({model.kv_heads} for keys and values), sequence {model.sequence_length}, "
            f"vocabulary {_text(model.vocab_size)}{experts}",
        )
    if description.parameters is not None:
        table.add_row("parameters", f"{description.parameters / 1e9:.3g} billion")
    sizes = {
        "TP": layout.tp,
        "PP": layout.pp,
        "DP": layout.dp,
        "CP": layout.cp,
        "EP": layout.ep,
        "VP": layout.vp,
    }
    known = ", ".join(f"{name} {size}" for name, size in sizes.items() if size is not None)
    table.add_row("layout", f"{_text(layout.world_size)} ranks{': ' if known else ''}{known}")
    table.add_row(
        "batch",
        f"global {_text(layout.global_batch_size)}, micro {_text(layout.micro_batch_size)}, "
        f"{_text(layout.micro_batches)} micro-batches",
    )
    table.add_row("precision", _text(description.precision))
    table.add_row("FLOP/s in the log", _text(description.logged_flops_convention))
    return table


def _steps_table(steps: Sequence[TrainingStep]) -> TerminalTable:
    shown = [*steps[: _SHOWN_STEPS // 2], *steps[max(_SHOWN_STEPS // 2, len(steps) - _SHOWN_STEPS // 2) :]]
    table = TerminalTable(f"{len(steps)} progress lines")
    for heading in ("step", "seconds", "tokens/s", "samples/s", "TFLOP/s", "batch", "loss", ""):
        table.add_column(heading, justify="right", no_wrap=True)
    for index, step in enumerate(shown):
        if index == _SHOWN_STEPS // 2 and len(steps) > _SHOWN_STEPS:
            table.add_row("...")
        flops = step.flops_per_s_per_gpu
        table.add_row(
            str(step.step),
            _number(step.step_time_s, ".4g"),
            _number(step.tokens_per_s, ",.0f"),
            _number(step.samples_per_s, ".4g"),
            _number(None if flops is None else flops / 1e12, ".4g"),
            _number(step.global_batch_size, "d"),
            _number(next(iter(step.losses.values()), None), ".5g"),
            "warm-up" if step.warmup else "",
        )
    return table


def _phases_table(step: int, phases: Mapping[str, PhaseTime]) -> TerminalTable:
    table = TerminalTable(f"phases of step {step}, seconds")
    for heading in ("phase", "min", "max", "ranks"):
        table.add_column(heading, justify="left" if heading == "phase" else "right")
    for name, phase in phases.items():
        ranks = list(phase.by_rank.values())
        low = min(ranks) if phase.min_s is None and ranks else phase.min_s
        high = max(ranks) if phase.max_s is None and ranks else phase.max_s
        table.add_row(name, _number(low, ".5g"), _number(high, ".5g"), str(len(ranks)) if ranks else "-")
    return table


def _show_rest(document: LogDocument, console: Console) -> None:
    if document.nccl:
        console.print(_nccl_table(document.nccl))
    console.print(f"{document.unrecognized_lines} of {document.lines} lines were not recognized.")
    if document.examples:
        console.print("Among these are lines that look like progress; please report them:")
    for example in document.examples[:_SHOWN_EXAMPLES]:
        console.print(f"  {example}", markup=False, overflow="ellipsis", no_wrap=True)


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def _text(value: object) -> str:
    return "unknown" if value is None else str(value)


def _nccl_table(log: DebugLog) -> Table:
    """Versions, networks, connections between ranks, and communicators by size."""
    table = Table(title="NCCL", title_justify="left", show_header=False, box=None, pad_edge=False)
    table.add_row("version", _listed(sorted(log.versions)))
    table.add_row("network", _listed(sorted(log.networks)))
    pairs = (f"{count} by {transport}" for transport, count in sorted(log.transports.items()))
    table.add_row("connections", _listed(list(pairs)))
    sizes = Counter({identity: one.ranks for (identity, _), one in log.communicators.items()}.values())
    counted = (f"{count} of {size} ranks" for size, count in sorted(sizes.items(), reverse=True))
    table.add_row("communicators", _listed(list(counted)))
    return table


def _listed(words: list[str]) -> str:
    return ", ".join(words) or "unknown"

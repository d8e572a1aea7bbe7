"""The `perfd` command: one module per verb, imported only when used."""

from __future__ import annotations

import argparse
import contextlib
import gc
import importlib
import os
import sys
from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager
from difflib import get_close_matches
from types import ModuleType
from typing import Any

from perfd import __version__
from perfd.cli.signals import unwound_by_signals
from perfd.cli.standard_streams import output_written, prepare_streams, streams_settled
from perfd.errors import PerfdError
from perfd.formatting import printable_text

VERBS = {
    "demo": "replay a recorded 4-GPU job with a slow GPU, to see what perfd finds",
    "run": "run a command under perfd: agent and aggregator beside it, a diagnosis at the end",
    "agent": "collect on this node and stream to an aggregator",
    "aggregator": "receive agents' streams: metrics, analysis, rules, captures, history",
    "gateway": "take agents' streams, and publish them to NATS for aggregators elsewhere",
    "replay": "replay a recording through agent, gRPC and aggregator",
    "record": "record what an agent collects",
    "parse": "show what perfd reads from a training log",
    "serving": "compare a serving engine, its saved metrics or its log with theory",
    "bench-serving": "compare results of bench_serving with theory",
    "diagnose": "diagnose what limits a job: evidence and advice",
    "status": "list the jobs of an aggregator once",
    "top": "watch the jobs of an aggregator",
    "watch": "print a line about a job every few seconds, for CI logs and tmux",
    "nodes": "show what nodes were blamed for over all jobs, and which are suspects",
    "capture": "list, show, start and cancel captures of an aggregator's jobs",
    "analyze": "analyze traces: what limits the job",
    "trace": "show tables of traces: kernels, calls, copies, streams, operators, lines of code",
    "open": "open the page of a job that has ended",
    "compare": "compare two runs; exit 1 on a regression",
    "roofline": "place a GPU operation on the roofline, from its shape or a report of Nsight Compute",
    "memory": "show what fills GPU memory, from a snapshot of PyTorch's allocator or a trace",
    "collective": "compute the least time of a collective, and how close a measured one comes",
    "report": "write a report of a job or of traces as a page",
    "mcp": "answer assistants about an aggregator's jobs, over the Model Context Protocol",
    "rules": "check rules files and run their unit tests",
    "webhook": "add perfd's agent to pods, as an admission webhook of Kubernetes",
    "doctor": "check prerequisites on this node and suggest fixes",
    "version": "print the version",
}
"""Each verb is the module `perfd.cli.VERB` (`_` for `-`) with `configure(parser)` and `run(args) -> int`."""
_OWN_OUTPUT = (
    "demo",
    "run",
    "agent",
    "aggregator",
    "gateway",
    "replay",
    "top",
    "open",
    "mcp",
    "webhook",
    "version",
)
"""Verbs that pass on what a job prints, draw on the screen, or print nothing of others."""
_SHOWN_CHARS = 256
"""Of text that cannot be written."""
_USES_GRPC = ("agent", "aggregator", "gateway", "demo", "replay")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one verb and return its exit code; errors that perfd raises on purpose become one sentence."""
    if arguments is not None:
        return _main(list(arguments), own_process=False)
    prepare_streams()
    with streams_settled():
        return _main(sys.argv[1:], own_process=True)


def _main(argv: list[str], *, own_process: bool) -> int:
    wanted = next((word for word in argv if not word.startswith("-")), None)
    try:
        with output_written():
            return _run(argv, wanted, own_process=own_process)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader of our output left, as `head` does: nothing is wrong.
        return 141
    except (PerfdError, OSError, UnicodeEncodeError, MemoryError) as error:
        return _refuse(wanted, _sentence(error))
    except Exception as error:  # noqa: BLE001  (else the exit code would be 1, which several verbs mean as an answer)
        errors: ModuleType = importlib.import_module("perfd.cli.unexpected_errors")
        return _refuse(wanted, errors.unexpected(error))


def _refuse(verb: str | None, sentence: str) -> int:
    with contextlib.suppress(OSError):
        print(printable_text(f"perfd {verb}: {sentence}" if verb else f"perfd: {sentence}"), file=sys.stderr)
    return 2


def _run(argv: list[str], wanted: str | None, *, own_process: bool) -> int:
    if not argv:
        build_parser(()).print_help(sys.stderr)
        return 2
    # Only the module of the verb in question is imported: the agent must stay small.
    if wanted in _USES_GRPC:
        # gRPC logs failed connections, which perfd reports itself. It reads this variable when imported, and
        # only these verbs set it, so that a command under `perfd run` does not inherit it.
        os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    if wanted is not None and wanted not in VERBS:
        hint = _alike(wanted, VERBS) or "; `perfd --help` lists the verbs."
        build_parser(()).error(f"unknown verb: {wanted}{hint}")
    args = build_parser({wanted} if wanted else ()).parse_args(argv)
    args.own_process = own_process
    with unwound_by_signals(), _output(args.verb):
        return int(_module(args.verb).run(args))


def _output(verb: str) -> AbstractContextManager[None]:
    if verb in _OWN_OUTPUT:
        return contextlib.nullcontext()
    escapes: ModuleType = importlib.import_module("perfd.cli.output_escapes")
    safe: AbstractContextManager[None] = escapes.safe_output()
    return safe


def _sentence(error: PerfdError | OSError | UnicodeEncodeError | MemoryError) -> str:
    if isinstance(error, OSError):
        where = f"{error.filename}: " if error.filename is not None else ""
        return f"{where}{error.strerror or error}."
    if isinstance(error, UnicodeEncodeError):
        text = error.object[:_SHOWN_CHARS]
        return f"{text!a} is not valid UTF-8. If it is the name of a file, rename the file."
    if isinstance(error, MemoryError):
        return "Out of memory. Try fewer files at once, or a machine with more memory."
    return str(error)


class _Parser(argparse.ArgumentParser):
    """Refuses what it does not know by itself, so that the usage beside the refusal is the verb's own."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:  # noqa: ANN401  (as declared there)
        known, unknown = super().parse_known_args(args, namespace)
        if unknown:
            hint = _alike(unknown[0].partition("=")[0], self._option_string_actions)
            self.error(f"unrecognized arguments: {' '.join(unknown)}{hint}")
        return known, unknown

    def _check_value(self, action: argparse.Action, value: Any) -> None:  # noqa: ANN401  (as declared there)
        try:
            super()._check_value(action, value)
        except argparse.ArgumentError as error:
            error.message += _alike(str(value), [str(one) for one in action.choices or ()])
            raise


def _alike(word: str, known: Collection[str]) -> str:
    # Dashes would make any two options alike.
    bare = {one.lstrip("-"): one for one in known}
    found = get_close_matches(word.lstrip("-"), bare, n=1)
    return f"; did you mean {bare[found[0]]}?" if found else ""


def build_parser(verbs: Collection[str] = VERBS) -> argparse.ArgumentParser:
    """The parser of the command line, which knows the arguments of `verbs` alone."""
    parser = _Parser(prog="perfd", description=_description())
    parser.add_argument("--version", action="version", version=__version__, help="print the version")
    choices = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    for verb, summary in VERBS.items():
        subparser = choices.add_parser(verb, help=summary, description=summary[0].upper() + summary[1:] + ".")
        if verb in verbs:
            _module(verb).configure(subparser)
    return parser


def _module(verb: str) -> ModuleType:
    # What is imported lasts: looking for garbage in it all the time is a tenth of the time that it takes.
    looks = gc.isenabled()
    gc.disable()
    try:
        return importlib.import_module(f"perfd.cli.commands.{verb.replace('-', '_')}")
    finally:
        if looks:
            gc.enable()


def _description() -> str:
    return (
        "Finds what slows a GPU job while it runs: the gap to the hardware's limit, where time goes, and why."
    )

"""The `perfd` command: one module a verb, imported only when it is asked for."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import os
import sys
from collections.abc import Collection, Sequence
from types import ModuleType
from typing import Any

from perfd import __version__
from perfd.cli.signals import unwound_by_signals
from perfd.errors import PerfdError

VERBS = {
    "run": "run a command and watch it: agent and aggregator around it, a summary at the end",
    "agent": "read this node's sources and stream them to an aggregator",
    "aggregator": "receive agents' streams; metrics, rules, captures, history",
    "replay": "play a recording through agent, wire and aggregator",
    "record": "write what an agent sees into a recording",
    "parse": "show what perfd understands of a training log",
    "serving": "explain a serving engine, a saved page of its metrics or its log, beside theory",
    "bench-serving": "put results of bench_serving beside theory",
    "diagnose": "say what limits a job, with evidence and what to do",
    "status": "show the jobs of an aggregator, once",
    "top": "show the jobs of an aggregator, live",
    "capture": "list, show, start and cancel captures of an aggregator's jobs",
    "analyze": "say what limits a capture, from its traces",
    "compare": "say what changed between two runs, and fail when it got worse",
    "roofline": "say what limits an operation on a GPU, from its shape or from Nsight Compute",
    "report": "write a job's summary as a page to read",
    "rules": "check rules files, and run their unit tests",
    "doctor": "say what this node lacks, and how to mend it",
    "version": "print the version",
}
"""Each verb is the module `perfd.cli.VERB` (`_` for `-`) with `configure(parser)` and `run(args) -> int`."""
_SPEAK_GRPC = ("agent", "aggregator", "replay")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one verb and return its exit code; errors that perfd raises on purpose become one sentence."""
    argv = list(sys.argv[1:] if arguments is None else arguments)
    if not argv:
        build_parser(()).print_help(sys.stderr)
        return 2
    # Only the module of the verb in question is imported: the agent must stay small.
    wanted = next((word for word in argv if not word.startswith("-")), None)
    if wanted in _SPEAK_GRPC:
        # gRPC writes lines of its own about addresses and connections that fail, which perfd tells in a
        # sentence; it asks when it is imported. A command that is run does not inherit it from these verbs.
        os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    try:
        args = build_parser({wanted} if wanted else ()).parse_args(argv)
        with unwound_by_signals():
            code = int(_module(args.verb).run(args))
        _flush()
    except PerfdError as error:
        print(f"perfd {wanted}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader of our output left, as `head` does: nothing is wrong.
        _discard_output()
        return 141
    except OSError as error:
        where = f"{error.filename}: " if error.filename is not None else ""
        print(f"perfd {wanted}: {where}{error.strerror or error}.", file=sys.stderr)
        _discard_output()
        return 2
    return code


def _flush() -> None:
    """Write what is still buffered while a disk that is full can still be told."""
    if sys.stdout is not None:
        sys.stdout.flush()


def _discard_output() -> None:
    """Let what is buffered go nowhere, so that the interpreter's end does not fail over it."""
    with contextlib.suppress(AttributeError, OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class _Parser(argparse.ArgumentParser):
    """Refuses what it does not know by itself, so that the usage beside the refusal is the verb's own."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:  # noqa: ANN401  (as declared there)
        known, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        return known, unknown


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
    return importlib.import_module(f"perfd.cli.commands.{verb.replace('-', '_')}")


def _description() -> str:
    return "How far a GPU job is from what its hardware allows, where the time goes, and who is to blame."

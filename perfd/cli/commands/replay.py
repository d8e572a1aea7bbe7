"""`perfd replay`."""

from __future__ import annotations

import argparse
import signal
import sys
import time
from pathlib import Path

import msgspec
from rich.live import Live

from perfd import logs
from perfd.aggregator.aggregator import Aggregator
from perfd.capture.policy.coordinator import CAPTURE_LABEL
from perfd.cli.arguments import number_from_zero, positive
from perfd.cli.output_escapes import safe_output
from perfd.cli.signals import set_by_signals
from perfd.cli.tables.status_tables import render
from perfd.cli.terminal import Terminal
from perfd.config import AggregatorConfig, HistoryConfig
from perfd.formatting import duration
from perfd.recording.recording_format import bundled_names, find_recording
from perfd.session.replay_session import TICK_S, ReplayOptions, ReplayProgress, ReplayResult, replay
from perfd.session.session_config import SessionConfig, load_session, with_rules
from perfd.session.text import fitted, in_words, summary_json

EXIT_CODES = """\
Exit codes: 0 the recording was played to its end; 2 it, the configuration or a rules file cannot
be used; 130 interrupted before its end. Alerts that fire do not change the exit code."""
_HTTP = AggregatorConfig().http_listen
_PROGRESS_EVERY_RATIO = 0.1
"""Share of the recording between two progress lines, where there is no terminal to redraw one."""
_DRAW_EVERY_S = 0.2
"""Between drawings of the line on a terminal: people read no faster."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.epilog = EXIT_CODES
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument(
        "recording",
        metavar="RECORDING",
        help=f"a recording's directory, or a bundled one: {', '.join(bundled_names())}",
    )
    parser.add_argument(
        "--speed",
        type=_speed,
        default=1.0,
        metavar="N|max",
        help="playback speed; max is as fast as possible (default: 1)",
    )
    parser.add_argument(
        "--skip",
        type=number_from_zero,
        default=0.0,
        metavar="SECONDS",
        help="play the first SECONDS as fast as possible (default: 0)",
    )
    parser.add_argument(
        "--look-every",
        type=positive,
        default=TICK_S,
        metavar="SECONDS",
        help="recorded time between two looks; a live session looks each second (default: 1)",
    )
    parser.add_argument("--json", action="store_true", help="print only one object of schema perfd.summary/2")
    parser.add_argument("--config", type=Path, metavar="FILE", help="configuration of the session (YAML)")
    parser.add_argument(
        "--rules",
        type=Path,
        nargs="+",
        action="extend",
        default=[],
        metavar="FILE",
        help="additional rules files",
    )
    parser.add_argument(
        "--http", metavar="HOST:PORT", help="serve the page, /metrics and /api/v1 during the replay"
    )
    parser.add_argument(
        "--hold",
        action="store_true",
        help=f"after the end, keep serving until Ctrl-C or SIGTERM (at --http, else {_HTTP})",
    )
    parser.add_argument("--allow-missing", action="store_true", help="tolerate missing files")


def run(args: argparse.Namespace) -> int:
    """Play a recording and print its summary."""
    logs.configure("error")
    options = ReplayOptions(
        recording=find_recording(args.recording),
        speed=args.speed,
        skip_s=args.skip,
        tick_s=args.look_every,
        allow_missing=args.allow_missing,
        config=_configuration(args),
        http=args.http or (_HTTP if args.hold else None),
    )
    console = Terminal()
    live = Live(console=console, auto_refresh=False) if console.is_terminal and not args.json else None

    def end(result: ReplayResult, aggregator: Aggregator) -> None:
        if live is not None:
            live.stop()
        with safe_output():
            _print(result, as_json=args.json, fast=args.speed is None)
        if args.hold:
            _hold(aggregator)

    if live is not None:
        with live:
            replay(options, on_progress=_LiveTable(live).show, on_end=end)
    else:
        show = _nothing if args.json else _ProgressLines(args.skip).show
        replay(options, on_progress=show, on_end=end)
    return 0


def _print(result: ReplayResult, *, as_json: bool, fast: bool) -> None:
    if as_json:
        for warning in result.warnings:
            print(f"perfd replay: {warning}", file=sys.stderr)
        sys.stdout.write(summary_json(result.summaries).decode())
        return
    text = in_words(result.summaries, result.alerts, [*result.warnings, *_captures(result)])
    print(fitted(text, sys.stdout), end="")
    factor = f", {result.played_s / result.took_s:.0f} times real time" if fast else ""
    print(f"\nPlayed {result.played_s:.1f} s in {result.took_s:.1f} s{factor}.")


def _captures(result: ReplayResult) -> list[str]:
    """What the alerts of a live job would have done: a recording has no processes to trace."""
    names = sorted({alert["name"] for alert in result.alerts if CAPTURE_LABEL in alert["labels"]})
    return [f"On a live job, {' and '.join(names)} would have started a capture."] if names else []


def _hold(aggregator: Aggregator) -> None:
    """Keep serving until a signal; the recording's clock does not advance."""
    stop = set_by_signals(signal.SIGTERM, signal.SIGINT)
    sys.stdout.flush()
    print(f"Serving at http://{aggregator.http_address}/ until Ctrl-C.", file=sys.stderr, flush=True)
    stop.wait()


def _nothing(_: ReplayProgress) -> None:
    """With --json, progress is not shown."""


class _LiveTable:
    """The jobs as a table that changes in place; drawn a few times a second at most."""

    def __init__(self, live: Live) -> None:
        self._live = live
        self._drawn_s = float("-inf")

    def show(self, progress: ReplayProgress) -> None:
        now_s = time.monotonic()
        if now_s - self._drawn_s < _DRAW_EVERY_S and progress.played_s < progress.total_s:
            return
        self._drawn_s = now_s
        aggregator = progress.aggregator
        played = (progress.played_s, progress.total_s)
        self._live.update(render(aggregator.overview(), aggregator.alerts(), played=played), refresh=True)


class _ProgressLines:
    """A line for every tenth of the recording, for output that is not a terminal.

    None for what is skipped.
    """

    def __init__(self, skip_s: float) -> None:
        self._skip_s = skip_s
        self._next_ratio = _PROGRESS_EVERY_RATIO

    def show(self, progress: ReplayProgress) -> None:
        ratio = progress.played_s / progress.total_s if progress.total_s else 1.0
        if ratio < self._next_ratio or progress.played_s < min(self._skip_s, progress.total_s):
            return
        self._next_ratio = (int(ratio / _PROGRESS_EVERY_RATIO) + 1) * _PROGRESS_EVERY_RATIO
        print(f"{progress.played_s:7.1f} of {progress.total_s:.1f} s  {_jobs(progress)}", flush=True)


def _jobs(progress: ReplayProgress) -> str:
    parts = []
    for name in progress.aggregator.jobs():
        live = progress.aggregator.live(name)
        if live is not None and live.step_time_s.median is not None:
            one = live.steps.one
            parts.append(f"{name}: {one} {live.steps.last}, {duration(live.step_time_s.median)} per {one}")
    return "; ".join(parts) or "no step yet"


def _configuration(args: argparse.Namespace) -> SessionConfig:
    config = with_rules(load_session(args.config), map(str, args.rules))
    # A replay leaves no traces in the history of real jobs.
    aggregator = msgspec.structs.replace(config.aggregator, history=HistoryConfig())
    return msgspec.structs.replace(config, aggregator=aggregator)


def _speed(text: str) -> float | None:
    if text == "max":
        return None
    try:
        speed = float(text)
    except ValueError:
        speed = 0.0
    if not 0 < speed < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is neither a positive number nor max")
    return speed

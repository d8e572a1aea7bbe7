"""`perfd top`."""

from __future__ import annotations

import argparse
import contextlib
import select
import sys
import termios
import tty
from collections.abc import Callable, Iterator

from rich.console import Console, RenderableType
from rich.live import Live
from rich.text import Text

from perfd.cli.client import add_aggregator, get, url_of
from perfd.cli.display import render
from perfd.errors import PerfdError


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add_aggregator(parser)
    parser.add_argument("--interval", type=float, default=1.0, metavar="S", help="seconds between two looks")
    parser.add_argument("--once", action="store_true", help="look once and leave, as in a script")


def run(args: argparse.Namespace) -> int:
    """Show the jobs of an aggregator until `q` or Ctrl-C."""
    url = url_of(args)
    console = Console()
    if args.once:
        console.print(_look(url))
        return 0
    # The first look may fail with a sentence; later ones show it and go on.
    first = _look(url)
    with _keys() as pressed, Live(first, console=console, screen=True, auto_refresh=False) as live:
        while not pressed(max(0.1, args.interval)):
            try:
                shown = _look(url)
            except PerfdError as error:
                shown = Text(f"{error}\n\nTrying again; q leaves.", style="red")
            live.update(shown, refresh=True)
    return 0


def _look(url: str) -> RenderableType:
    return render(get(url, "/api/v1/jobs")["jobs"], get(url, "/api/v1/alerts")["alerts"])


@contextlib.contextmanager
def _keys() -> Iterator[Callable[[float], bool]]:
    """A function that waits, and says whether `q` was pressed meanwhile."""
    interactive = sys.stdin.isatty()
    saved = termios.tcgetattr(sys.stdin) if interactive else None
    if interactive:
        tty.setcbreak(sys.stdin)

    def pressed(seconds: float) -> bool:
        ready, _, _ = select.select([sys.stdin] if interactive else [], [], [], seconds)
        return bool(ready) and sys.stdin.read(1) in {"q", "Q"}

    try:
        yield pressed
    finally:
        if saved is not None:
            termios.tcsetattr(sys.stdin, termios.TCSADRAIN, saved)

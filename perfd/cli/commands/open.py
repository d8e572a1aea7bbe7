"""`perfd open`."""

from __future__ import annotations

import argparse
import signal
from pathlib import Path
from urllib.parse import quote

from perfd.aggregator.web_api import SavedRun, routes
from perfd.cli.signals import set_by_signals
from perfd.config import AggregatorConfig
from perfd.errors import PerfdError
from perfd.net import AccessControl, HttpServer
from perfd.web.live_updates import Live

_HTTP = AggregatorConfig().http_listen or "127.0.0.1:0"
_COMPARED = 2
"""The page of a comparison takes two runs."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "folders",
        type=Path,
        metavar="FOLDER",
        nargs="+",
        help="what `perfd run` saved: perfd-out/JOB-TIME; two of them are shown side by side",
    )
    parser.add_argument(
        "--http", metavar="HOST:PORT", help=f"address of the page (default: {_HTTP}, or a free port)"
    )


def run(args: argparse.Namespace) -> int:
    """Serve the page of runs that are over, until Ctrl-C or SIGTERM."""
    saved = SavedRun(*args.folders)
    stop = set_by_signals(signal.SIGTERM, signal.SIGINT)
    # A stream would announce rounds that never come: the page gets none.
    live = Live()
    live.close()
    server = _serve(saved, live, args.http)
    print(f"Serving at http://{server.address}/{_view(saved)} until Ctrl-C.", flush=True)
    stop.wait()
    server.close()
    return 0


def _view(saved: SavedRun) -> str:
    """Of two runs the page that shows them side by side; of others the list of jobs."""
    names = [quote(name, safe="") for name in saved.jobs()]
    return f"compare?a={names[0]}&b={names[1]}" if len(names) == _COMPARED else ""


def _serve(saved: SavedRun, live: Live, wanted: str | None) -> HttpServer:
    served = routes(saved, live, saved_unix_s=saved.saved_unix_s)
    address = wanted or _HTTP
    try:
        return HttpServer(address, AccessControl(address).guard(served))
    except PerfdError:
        if wanted is not None:
            raise
        # A session on this machine has the usual port.
        return HttpServer("127.0.0.1:0", AccessControl("127.0.0.1:0").guard(served))

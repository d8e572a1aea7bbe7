"""`perfd mcp`."""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perfd import logs
from perfd.cli.aggregator_client import (
    TOKEN_VARIABLE,
    add_aggregator,
    ask,
    authorization_in,
    url_of,
)
from perfd.collector_loading import collector_entry_points, load_collector
from perfd.errors import PerfdError
from perfd.metrics.catalog import (
    AGENT_METRICS,
    AGENT_PAGE_METRICS,
    AGGREGATOR_METRICS,
    GATEWAY_METRICS,
    JOB_METRICS,
    PROCESS_METRICS,
    MetricInfo,
    raw_metric,
)

if TYPE_CHECKING:
    from perfd.net.access_control import BearerToken

_EPILOG = """\
Without --http it serves the program that started it, over standard input and output. Tools read; the one
that starts captures needs --capture-token-file, and with --http a client that shows that token.
Needs the extra perfd[mcp]."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.epilog = _EPILOG
    add_aggregator(parser)
    parser.add_argument(
        "--http",
        metavar="HOST:PORT",
        help="serve streamable HTTP at /mcp there; beyond loopback it needs --read-token-file",
    )
    parser.add_argument(
        "--read-token-file",
        type=Path,
        metavar="FILE",
        help="holds the token of the aggregator's http_read_token_file; clients of --http must show it too;"
        f" default: ${TOKEN_VARIABLE}, else none",
    )
    parser.add_argument(
        "--capture-token-file",
        type=Path,
        metavar="FILE",
        help="holds the token of the aggregator's http_token_file: offer the tool that starts captures",
    )
    parser.add_argument("--log-level", choices=logs.LEVELS, default="warning")


@dataclass(frozen=True, slots=True, kw_only=True)
class _HttpApi:
    """The API of an aggregator, asked with tokens whose files are read for each request."""

    url: str
    read_token: str | Path | None
    capture_token: Path | None

    def get(self, path: str) -> dict[str, Any]:
        return ask(self.url, "GET", path, headers=authorization_in(self.read_token))

    def post(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        headers = {"Content-Type": "application/json", **authorization_in(self.capture_token)}
        return ask(self.url, "POST", path, body=json.dumps(body), headers=headers)


def run(args: argparse.Namespace) -> int:
    """Serve until the client leaves, or until SIGTERM or SIGINT."""
    if importlib.util.find_spec("mcp") is None:
        raise PerfdError("This needs the package mcp: pip install 'perfd[mcp]'.")
    from perfd.mcp.server import build_server, serve_stdio  # noqa: PLC0415  (an extra, and slow to import)
    from perfd.mcp.tools import ToolContext  # noqa: PLC0415  (as above)

    logs.configure(args.log_level)
    read_token = args.read_token_file or os.environ.get(TOKEN_VARIABLE)
    # Clients of --http get what their own token gives, and no more.
    reading = read_token or (args.capture_token_file if args.http is None else None)
    api = _HttpApi(url=url_of(args), read_token=reading, capture_token=args.capture_token_file)
    # A token that cannot be read is refused before a client comes.
    authorization_in(read_token)
    authorization_in(args.capture_token_file)
    context = ToolContext(api=api, catalog=_every_metric())
    if args.http is None:
        with_capture = args.capture_token_file is not None
        serve_stdio(build_server(context, lambda _: with_capture))
        return 0
    _serve_http(args, read_token, lambda may_capture: build_server(context, may_capture))
    return 0


def _every_metric() -> dict[str, MetricInfo]:
    """All that docs/metrics.md lists, by name."""
    exported = (
        *(*JOB_METRICS, *AGENT_METRICS, *AGGREGATOR_METRICS),
        *(*AGENT_PAGE_METRICS, *GATEWAY_METRICS, *PROCESS_METRICS),
    )
    columns = (column for name in collector_entry_points() for column in load_collector(name).columns)
    return {metric.name: metric for metric in (*exported, *map(raw_metric, columns))}


def _serve_http(
    args: argparse.Namespace,
    read_token: str | Path | None,
    build: Callable[[Callable[[Any], bool]], Any],
) -> None:
    from perfd.mcp.http_access import HttpAccess  # noqa: PLC0415  (as in `run`)
    from perfd.mcp.http_server import may_capture, serve_http  # noqa: PLC0415  (as in `run`)

    access = HttpAccess(
        read=_token(read_token, "--read-token-file"),
        capture=_token(args.capture_token_file, "--capture-token-file"),
    )

    def say(address: str) -> None:
        print(f"Serving tools at {address} until Ctrl-C.", file=sys.stderr, flush=True)

    serve_http(build(may_capture), args.http, access, say)


def _token(path: str | Path | None, key: str) -> BearerToken | None:
    from perfd.net.access_control import BearerToken  # noqa: PLC0415  (as in `run`)

    return None if path is None else BearerToken(str(path), key=key)

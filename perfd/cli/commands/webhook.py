"""`perfd webhook`."""

from __future__ import annotations

import argparse
import logging
import signal
from pathlib import Path

from perfd import logs
from perfd.cli.signals import set_by_signals
from perfd.config import TlsConfig, load
from perfd.injection import Injection, reviewed
from perfd.net import Handler, HttpServer, Request, Response, ServerTls, text_response

log = logging.getLogger("perfd.webhook")


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "--config",
        type=Path,
        metavar="FILE",
        required=True,
        help="what is added, in YAML or JSON (the Helm chart writes it)",
    )
    parser.add_argument(
        "--listen", metavar="HOST:PORT", default="0.0.0.0:9463", help="address for the API server"
    )
    parser.add_argument(
        "--certificate", metavar="FILE", required=True, help="PEM, read again when it changes"
    )
    parser.add_argument("--key", metavar="FILE", required=True, help="PEM")
    parser.add_argument("--log-level", choices=logs.LEVELS, default="info")
    parser.add_argument("--log-json", action="store_true", help="log JSON lines")


def run(args: argparse.Namespace) -> int:
    """Serve until SIGTERM or SIGINT."""
    logs.configure(args.log_level, json_lines=args.log_json)
    injection = load(args.config, Injection)
    tls = ServerTls(TlsConfig(certificate=args.certificate, key=args.key), key="--certificate")
    stop = set_by_signals(signal.SIGTERM, signal.SIGINT)
    server = HttpServer(args.listen, routes(injection), tls=tls)
    log.info("The webhook serves.", extra={"http": server.address})
    stop.wait()
    server.close()
    return 0


def routes(injection: Injection) -> dict[str, Handler]:
    """The webhook's paths."""

    def mutate(request: Request) -> Response:
        try:
            return Response(body=reviewed(request.body, injection))
        except ValueError as error:
            return text_response(f"{error}\n", 400)

    return {"/mutate": mutate, "/healthz": lambda _: text_response("ok\n")}

"""Where `perfd serving` and `perfd bench-serving` look: servers over HTTP, saved pages, logs.

`perfd bench-serving --watch URL --run CMD` watches a server while a command runs.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from perfd_collectors.serving.engine_logs import read_log
from perfd_collectors.serving.exposition_reader import MAX_PAGE_BYTES, PageReader
from perfd_collectors.serving.fetch import ServerAccess, base_of, fetch, metrics_url
from perfd_collectors.serving.server_scrape import FAMILIES, ask_info, read_page, with_info

from perfd.analysis.serving import ObservationWindow, ServerRates, ServerSetup, Snapshot, measure
from perfd.cli.arguments import positive
from perfd.errors import PerfdError
from perfd.net import client_context
from perfd.session.job import exit_code

_ADDRESS = re.compile(r"[A-Za-z0-9.-]+:\d{1,5}(/.*)?")
_LOG_START_BYTES = 4 * 1024 * 1024
"""A server says at its start how it is set up."""
_LOG_END_BYTES = 16 * 1024 * 1024
"""How much of the end of a server's log is read; it describes what runs now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSample:
    """What looking at a source amounted to."""

    source: str
    measured: ServerRates
    info: ServerSetup | None = None


def add_access_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare how servers are asked."""
    group = parser.add_argument_group("access")
    group.add_argument("--timeout", type=positive, default=5.0, metavar="SECONDS", help="timeout per request")
    group.add_argument(
        "--authorization-env", metavar="NAME", help="variable with the value of the Authorization header"
    )
    group.add_argument(
        "--authorization-file", metavar="FILE", help="file with the value of the Authorization header"
    )
    group.add_argument("--ca", metavar="FILE", help="certificates (PEM) to trust for https")
    group.add_argument("--certificate", metavar="FILE", help="client certificate (PEM), with --key")
    group.add_argument("--key", metavar="FILE", help="its key (PEM)")
    group.add_argument("--insecure", action="store_true", help="do not verify the server's certificate")


def access_for(args: argparse.Namespace) -> ServerAccess:
    """How the arguments say that servers are asked."""
    authorization = None
    if args.authorization_env is not None:
        authorization = os.environ.get(args.authorization_env)
        if not authorization:
            raise PerfdError(
                f"The variable {args.authorization_env} is not set: put the header's value into it."
            )
    return ServerAccess(
        timeout_s=args.timeout,
        authorization=authorization,
        authorization_file=Path(args.authorization_file) if args.authorization_file else None,
        tls=client_context(ca=args.ca, certificate=args.certificate, key=args.key, insecure=args.insecure),
    )


class ServerWatcher:
    """A server that is looked at more than once; every look may raise `PerfdError`."""

    def __init__(self, url: str, access: ServerAccess) -> None:
        self.url = url
        self._access = access
        self._reader = PageReader(FAMILIES)
        self._looks: list[tuple[float, Snapshot]] = []
        self.info: ServerSetup | None = None
        """What it says about itself; None before the first look."""

    def look(self) -> Snapshot:
        """Read its metrics; the first time also what it says about itself."""
        snapshot = read_page(self._reader, fetch(metrics_url(self.url), self._access), self.url)
        now_s = time.monotonic()
        if not self._looks:
            self.info = ask_info(
                snapshot.engine, base_of(self.url), lambda target: fetch(target, self._access)
            )
        snapshot = with_info(snapshot, self.info)
        # Of the looks between, only what they count up to matters.
        self._looks = [*self._looks[:1], (now_s, snapshot)]
        return snapshot

    def seen(self) -> ServerSample:
        """From the first look to the last."""
        (first_s, first), (last_s, last) = self._looks[0], self._looks[-1]
        several = len(self._looks) > 1
        measured = measure(last, first, last_s - first_s) if several else measure(last)
        return ServerSample(source=self.url, measured=measured, info=self.info)


def is_url(source: str) -> bool:
    """Whether a source is a server, not a file; `host:port` is one where no file is called so."""
    if source.startswith(("http://", "https://")):
        return True
    return _ADDRESS.fullmatch(source) is not None and not Path(source).exists()


def read_file(path: Path) -> ServerSample:
    """What a saved page or a log says; raises `PerfdError` when it is neither."""
    try:
        with path.open("rb") as file:
            body = file.read(MAX_PAGE_BYTES + 1)
            if b"\n# TYPE " not in b"\n" + body:
                log = _read_log(_start_and_end(file, body))
                if log is not None:
                    return ServerSample(source=str(path), measured=log[0], info=log[1])
    except OSError as error:
        raise PerfdError(f"{path} cannot be read: {error.strerror or error}. Name a page or log.") from error
    return ServerSample(source=str(path), measured=measure(read_page(PageReader(FAMILIES), body, str(path))))


def _start_and_end(file: BinaryIO, body: bytes) -> list[str]:
    """The lines of a log; of a long one, those of its start and end."""
    size = file.seek(0, os.SEEK_END)
    if size > len(body):
        file.seek(-_LOG_END_BYTES, os.SEEK_END)
        # Whole lines only: what a cut leaves of a number is another number.
        body = body[: body.rfind(b"\n", 0, _LOG_START_BYTES) + 1] + file.read().partition(b"\n")[2]
    lines = body.decode("utf-8", "replace").split("\n")
    # A line without an end may be cut within a number.
    return lines[:-1] if len(lines) > 1 else lines


def _read_log(lines: Sequence[str]) -> tuple[ServerRates, ServerSetup | None] | None:
    log = read_log(lines)
    snapshot = None if log is None else log.snapshot()
    return None if log is None or snapshot is None else (measure(with_info(snapshot, log.info)), log.info)


_LOOK_EVERY_S = 1.0
"""Between reads of the server's metrics, whose window must have several."""


def watch(server: ServerWatcher, command: Sequence[str], *, quiet: bool) -> tuple[int, ServerSample]:
    """Run a command to its end; its exit code (128 + n if signal n ended it), and what the server said then.

    With `quiet` the command's output goes to standard error. Raises `PerfdError` when the command cannot be
    started, or the server cannot be read at the start or at the end.
    """
    window = ObservationWindow(server.look())
    start_s = time.monotonic()
    try:
        process = subprocess.Popen(command, stdout=sys.stderr if quiet else None)
    except OSError as error:
        raise PerfdError(f"{command[0]} cannot be run: {error.strerror or error}.") from error
    try:
        while True:
            try:
                code = process.wait(_LOOK_EVERY_S)
                break
            except subprocess.TimeoutExpired:
                _look(server, window)
    except BaseException:
        process.terminate()
        process.wait()
        raise
    window.add(server.look())
    measured = window.measured(time.monotonic() - start_s)
    return exit_code(code), ServerSample(source=server.url, measured=measured, info=server.info)


def _look(server: ServerWatcher, window: ObservationWindow) -> None:
    # A server under load may be late once; the ends of the window decide.
    with contextlib.suppress(PerfdError):
        window.add(server.look())

"""The collector of serving engines: scrapes their metrics, reads their logs, and reduces both at the edge."""

from __future__ import annotations

import json
import math
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.parse import urlsplit

from perfd.analysis.flops import find_gpu
from perfd.analysis.serving import (
    Engine,
    ServerRates,
    ServerSetup,
    Snapshot,
    Theory,
    TheoryComparison,
    compare,
    completed,
    layout_of,
    measure,
    served_model,
    theory_of,
)
from perfd.collector import Options, Settings
from perfd.errors import ConfigError, PerfdError
from perfd.gpu_peaks import load_peaks
from perfd.model import Record, SampleTable, Scope, ServerInfo
from perfd.net import client_context
from perfd_collectors.serving.discovery import find_servers
from perfd_collectors.serving.exposition_reader import PageReader
from perfd_collectors.serving.fetch import FetchError, ServerAccess, base_of, fetch, metrics_url
from perfd_collectors.serving.log_follower import FollowedLog
from perfd_collectors.serving.server_description import ServerDescriptions, describe
from perfd_collectors.serving.server_row import row
from perfd_collectors.serving.server_scrape import WANTED, ask_info, read_page, with_info

_REDISCOVER_S = 10.0
_BACKOFF_S = 10.0
_ASK_INFO_AGAIN_S = 300.0
_FORGET_S = 600.0
"""For so long a server whose process ended counts as down; then as one that was wanted no more."""


class ServingOptions(Options, frozen=True):
    """Options of the `sglang` and `vllm` collectors."""

    urls: tuple[str, ...] = ()
    """Addresses of the servers, with a path where metrics are not at /metrics."""
    discover: bool = True
    """Look for servers among the node's processes too."""
    logs: tuple[str, ...] = ()
    """Log files of servers whose metrics are off."""
    timeout_s: float = 2.0
    """For one answer of a server; one that fails is left alone for 10 s."""
    window_s: float = 30.0
    """The time that rates and latencies are over."""
    authorization_file: str | None = None
    """A file with the value of the `Authorization` header (`Bearer ...`)."""
    ca: str | None = None
    """Certificates (PEM) to trust for https."""
    certificate: str | None = None
    key: str | None = None
    """The agent's own certificate and key (PEM), where the server wants one."""
    insecure: bool = False
    """Take any certificate of a server: who listens in between can read and change all of it."""
    gpu: str | None = None
    """The GPU's name as NVML gives it, for theory, where the server does not say it."""
    tp: int | None = None
    pp: int | None = None
    dp: int | None = None
    """How the model is spread over GPUs, for theory, where neither server nor command line says it."""
    model_config_file: str | None = None
    """The model's config.json, where its path on this node is not the one that the server names."""


class ServingCollector:
    """Looks at the servers of one engine. One that does not answer is a row with `up` 0, not an error."""

    def __init__(self, engine: Engine, options: ServingOptions, settings: Settings) -> None:
        self._engine = engine
        self._options = options
        self._settings = settings
        self._access = _access(options)
        self._servers: dict[str, _Server] = {}
        self._descriptions = ServerDescriptions()
        self._rediscover_s = -math.inf
        self._logs = {path: FollowedLog(Path(path)) for path in options.logs}
        self._of_logs: dict[str, ServerInfo] = {}
        for url in options.urls:
            try:
                self._add(url)
            except FetchError as error:
                raise ConfigError(f"collectors.{engine}.options.urls: {error}") from error

    def collect(self) -> Sequence[Record]:
        now_s = self._settings.clock.monotonic_s()
        if self._options.discover and now_s >= self._rediscover_s:
            self._rediscover_s = now_s + _REDISCOVER_S
            for found in find_servers(self._settings.proc):
                if found.engine is self._engine:
                    self._add(found.url).started(found.arguments, now_s)
            for name in [name for name, server in self._servers.items() if server.gone(now_s)]:
                del self._servers[name]
        rows = {name: server.row(now_s) for name, server in self._servers.items()}
        for path, log in self._logs.items():
            snapshot = log.read()
            if snapshot is not None and snapshot.engine is self._engine:
                name = path.replace(" ", "_")
                rows[name] = self._row_of_log(measure(snapshot), log.info)
                self._of_logs[name] = describe(name, snapshot, log.info)
        described = dict(self._of_logs)
        for name, server in self._servers.items():
            if (info := server.described(name)) is not None:
                described[name] = info
        return [*self._descriptions.news(described, now_s), *_tables(self._settings.clock.unix_ns(), rows)]

    def close(self) -> None:
        """Connections are closed after each answer."""

    def _row_of_log(self, measured: ServerRates, info: ServerSetup | None) -> Mapping[str, float]:
        theory = None if info is None else _theory(self._options, info)
        return row(measured, None if theory is None else compare(measured, theory))

    def _add(self, url: str) -> _Server:
        name = urlsplit(base_of(url)).netloc
        return self._servers.setdefault(name, _Server(url, self._access, self._options))


class _Server:
    """One server: its newest looks, and what it said about itself."""

    def __init__(self, url: str, access: ServerAccess, options: ServingOptions) -> None:
        self._url = url
        self._access = access
        self._options = options
        self._reader = PageReader(WANTED)
        self._looks: deque[tuple[float, Snapshot]] = deque()
        self._newest: Snapshot | None = None
        self._info: ServerSetup | None = None
        self._theory: Theory | None = None
        self._ask_s = -math.inf
        self._due_s = -math.inf
        self._arguments: Mapping[str, object] = {}
        self._found_s: float | None = None

    def started(self, arguments: Mapping[str, object], now_s: float) -> None:
        """Its process was seen, with these arguments."""
        self._found_s = now_s
        self._arguments = arguments

    def gone(self, now_s: float) -> bool:
        """Whether it was found by its process alone, and that has been away for long."""
        configured = self._url in self._options.urls
        return not configured and self._found_s is not None and now_s - self._found_s > _FORGET_S

    def row(self, now_s: float) -> Mapping[str, float]:
        """The server's columns; nothing while it is left alone after a failure."""
        if now_s < self._due_s:
            return {"up": 0.0}
        try:
            body = fetch(metrics_url(self._url), self._access)
            snapshot = read_page(self._reader, body, self._url)
        except PerfdError:
            self._due_s = now_s + _BACKOFF_S
            self._looks.clear()
            # Another version or model may listen there when it is back.
            self._ask_s = -math.inf
            return {"up": 0.0}
        self._ask(snapshot.engine, now_s)
        snapshot = self._newest = with_info(snapshot, self._info)
        measured = self._measure(snapshot, now_s)
        return {"up": 1.0, **row(measured, self._compare(measured))}

    def described(self, name: str) -> ServerInfo | None:
        """What it is, as it was when it last answered; None before it did."""
        return None if self._newest is None else describe(name, self._newest, self._info)

    def _measure(self, snapshot: Snapshot, now_s: float) -> ServerRates:
        before = self._looks[0] if self._looks else None
        measured = measure(snapshot, before and before[1], None if before is None else now_s - before[0])
        if before is not None and measured.span_s is None:
            # It restarted or has another model: what it said before is of another server.
            self._looks.clear()
            self._ask_s = -math.inf
        self._looks.append((now_s, snapshot))
        while len(self._looks) > 1 and now_s - self._looks[1][0] >= self._options.window_s:
            self._looks.popleft()
        return measured

    def _ask(self, engine: Engine, now_s: float) -> None:
        if now_s < self._ask_s:
            return
        self._ask_s = now_s + _ASK_INFO_AGAIN_S
        said = ask_info(engine, base_of(self._url), lambda url: fetch(url, self._access))
        self._info = completed(said, self._arguments)
        self._theory = _theory(self._options, self._info)

    def _compare(self, measured: ServerRates) -> TheoryComparison | None:
        return None if self._theory is None else compare(measured, self._theory)


def _theory(options: ServingOptions, info: ServerSetup) -> Theory | None:
    """The limits of what a server runs, or None when its model or GPU is unknown."""
    name = options.gpu or info.gpu_name
    gpu = find_gpu(load_peaks(), name) if name else None
    path = options.model_config_file or (f"{info.model}/config.json" if info.model else None)
    if gpu is None or path is None:
        return None
    try:
        config = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        # The model may be in another container's file system; theory is then not known.
        return None
    model = served_model(config, info.arguments) if isinstance(config, dict) else None
    layout = layout_of(info, tp=options.tp, pp=options.pp, dp=options.dp)
    return None if model is None or layout is None else theory_of(model, layout, gpu)


def _access(options: ServingOptions) -> ServerAccess:
    file = None if options.authorization_file is None else Path(options.authorization_file)
    if file is not None and not file.is_file():
        raise ConfigError(f"authorization_file: there is no file {file}.")
    tls = client_context(
        ca=options.ca, certificate=options.certificate, key=options.key, insecure=options.insecure
    )
    return ServerAccess(timeout_s=options.timeout_s, authorization_file=file, tls=tls)


def _tables(now_ns: int, rows: Mapping[str, Mapping[str, float]]) -> Sequence[Record]:
    present = {name: values for name, values in rows.items() if values}
    if not present:
        return []
    names = dict.fromkeys(name for values in present.values() for name in values)
    return [
        SampleTable(
            scope=Scope.SERVER,
            times_unix_ns=[now_ns] * len(present),
            entities=list(present),
            columns={name: [values.get(name, math.nan) for values in present.values()] for name in names},
        )
    ]

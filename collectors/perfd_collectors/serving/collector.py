"""The `sglang` and `vllm` collectors: scrape engines' metrics and read their logs, reduced on the node.

Each server's description is a record, sent on change and once per minute for new aggregators.
"""

from __future__ import annotations

import json
import math
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.parse import urlsplit

from perfd.analysis.flops.gpu_peak_lookup import find_gpu
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
from perfd.analysis.serving import server_config as engines
from perfd.collector import Options, Settings
from perfd.errors import ConfigError, PerfdError
from perfd.gpu_peaks import load_peaks
from perfd.model import ParallelLayout, Record, SampleTable, Scope, ServerInfo, ServerRole
from perfd.net import client_context
from perfd_collectors.serving.columns import row
from perfd_collectors.serving.discovery import find_servers
from perfd_collectors.serving.engine_logs import FollowedLog
from perfd_collectors.serving.exposition_reader import PageReader
from perfd_collectors.serving.fetch import FetchError, ServerAccess, base_of, fetch, metrics_url
from perfd_collectors.serving.server_scrape import FAMILIES, ask_info, read_page, with_info

DESCRIBE_EVERY_S = 60.0
"""How often unchanged descriptions are repeated, for aggregators that start later. Chosen, not measured."""
_MAX_TEXT_CHARS = 256
"""Longer texts are dropped: labels of metrics have this limit, too."""
_MAX_PARALLEL_SIZE = 1 << 20
"""Larger parallel sizes are garbage."""
_ROLES = {
    "prefill": ServerRole.PREFILL,
    "decode": ServerRole.DECODE,
    "unified": ServerRole.BOTH,
    "null": ServerRole.BOTH,
}
"""SGLang's label `engine_type`, and its argument `disaggregation_mode`."""
_REDISCOVER_S = 10.0
"""How often processes are scanned for servers. This and those below: chosen, not measured."""
_BACKOFF_S = 10.0
"""A server that failed to respond is not scraped for so long."""
_INFO_INTERVAL_S = 300.0
"""How often a server is queried for its configuration, which hardly changes while it runs."""
_FORGET_S = 600.0
"""For so long a server whose process ended is reported as down; then it counts as stopped on purpose."""


def describe(server: str, snapshot: Snapshot, setup: engines.ServerSetup | None) -> ServerInfo:
    """The record of a server, from its newest snapshot and its configuration."""
    layout = setup.layout if setup else None
    return ServerInfo(
        server=server,
        engine=snapshot.engine.value,
        version=_text(snapshot.version),
        model=_text(snapshot.model),
        parallel=ParallelLayout(tp=_size(layout.tp), pp=_size(layout.pp), dp=_size(layout.dp))
        if layout
        else ParallelLayout(),
        role=_role(snapshot, setup),
    )


class ServerDescriptions:
    """Remembers the last sent description of each server."""

    def __init__(self) -> None:
        self._sent: Mapping[str, ServerInfo] = {}
        self._due_s = -math.inf

    def changed(self, found: Mapping[str, ServerInfo], now_s: float) -> Sequence[ServerInfo]:
        """The descriptions that changed since the last call; all of them once per minute."""
        due = now_s >= self._due_s
        if due:
            self._due_s = now_s + DESCRIBE_EVERY_S
        changed = [info for name, info in found.items() if due or self._sent.get(name) != info]
        self._sent = dict(found)
        return changed


def _role(snapshot: Snapshot, setup: engines.ServerSetup | None) -> ServerRole | None:
    names = set(snapshot.roles)
    if not names and setup is not None:
        names = {str(setup.arguments.get("disaggregation_mode"))}
    roles = {_ROLES[name] for name in names if name in _ROLES}
    if len(roles) > 1:
        return ServerRole.BOTH
    return next(iter(roles), None)


def _text(text: str | None) -> str | None:
    """A text if it can be sent and shown, else None: servers are untrusted."""
    return text if text and len(text) <= _MAX_TEXT_CHARS and text.isprintable() else None


def _size(size: int) -> int | None:
    return size if 0 < size <= _MAX_PARALLEL_SIZE else None


class ServingOptions(Options, frozen=True):
    """Options of the `sglang` and `vllm` collectors."""

    urls: tuple[str, ...] = ()
    """Addresses of the servers, with a path if their metrics are not at /metrics."""
    discover: bool = True
    """Also look for servers among the node's processes."""
    logs: tuple[str, ...] = ()
    """Log files of servers without metrics."""
    timeout_s: float = 2.0
    """Timeout of a request; a server that fails is not queried for 10 s."""
    window_s: float = 30.0
    """The window of rates and latencies."""
    authorization_file: str | None = None
    """A file with the value of the `Authorization` header (`Bearer ...`)."""
    ca: str | None = None
    """Certificates (PEM) to trust for https."""
    certificate: str | None = None
    key: str | None = None
    """The agent's own certificate and key (PEM), if the server requires one."""
    insecure: bool = False
    """Accept any server certificate; an attacker on the path can then read and change all traffic."""
    gpu: str | None = None
    """The GPU's name as in NVML, for the theoretical bounds, if the server does not report it."""
    tp: int | None = None
    pp: int | None = None
    dp: int | None = None
    """Parallel sizes, for the theoretical bounds, if neither server nor command line has them."""
    model_config_file: str | None = None
    """The model's config.json, if its path on this node differs from the server's."""


class ServingCollector:
    """Scrapes the servers of one engine. One that does not respond is a row with `up` 0, not an error."""

    def __init__(self, engine: Engine, options: ServingOptions, settings: Settings) -> None:
        self._engine = engine
        self._options = options
        self._settings = settings
        self._access = _access(options)
        self._servers: dict[str, _Server] = {}
        self._descriptions = ServerDescriptions()
        self._rediscover_s = -math.inf
        self._logs = {path: FollowedLog(Path(path)) for path in options.logs}
        self._log_infos: dict[str, ServerInfo] = {}
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
                self._log_infos[name] = describe(name, snapshot, log.info)
        described = dict(self._log_infos)
        for name, server in self._servers.items():
            if (info := server.described(name)) is not None:
                described[name] = info
        table = SampleTable.of_rows(Scope.SERVER, self._settings.clock.unix_ns(), rows)
        return [*self._descriptions.changed(described, now_s), *([] if table is None else [table])]

    def close(self) -> None:
        """Nothing to free: connections are closed after each response."""

    def _row_of_log(self, measured: ServerRates, info: ServerSetup | None) -> Mapping[str, float]:
        theory = None if info is None else _theory(self._options, info)
        return row(measured, None if theory is None else compare(measured, theory))

    def _add(self, url: str) -> _Server:
        name = urlsplit(base_of(url)).netloc
        return self._servers.setdefault(name, _Server(url, self._access, self._options))


class _Server:
    """One server: its snapshots of the window, and its configuration."""

    def __init__(self, url: str, access: ServerAccess, options: ServingOptions) -> None:
        self._url = url
        self._access = access
        self._options = options
        self._reader = PageReader(FAMILIES)
        self._snapshots: deque[tuple[float, Snapshot]] = deque()
        self._newest: Snapshot | None = None
        self._info: ServerSetup | None = None
        self._theory: Theory | None = None
        self._info_due_s = -math.inf
        self._due_s = -math.inf
        self._arguments: Mapping[str, object] = {}
        self._found_s: float | None = None

    def started(self, arguments: Mapping[str, object], now_s: float) -> None:
        """Note that its process was found, with these arguments."""
        self._found_s = now_s
        self._arguments = arguments

    def gone(self, now_s: float) -> bool:
        """Whether it was only known from its process, which ended long ago."""
        configured = self._url in self._options.urls
        return not configured and self._found_s is not None and now_s - self._found_s > _FORGET_S

    def row(self, now_s: float) -> Mapping[str, float]:
        """The server's columns; only `up` 0 while it does not respond."""
        if now_s < self._due_s:
            return {"up": 0.0}
        try:
            body = fetch(metrics_url(self._url), self._access)
            snapshot = read_page(self._reader, body, self._url)
        except PerfdError:
            self._due_s = now_s + _BACKOFF_S
            self._snapshots.clear()
            # Another version or model may listen there afterward.
            self._info_due_s = -math.inf
            return {"up": 0.0}
        self._ask(snapshot.engine, now_s)
        snapshot = self._newest = with_info(snapshot, self._info)
        measured = self._measure(snapshot, now_s)
        return {"up": 1.0, **row(measured, self._compare(measured))}

    def described(self, name: str) -> ServerInfo | None:
        """Its description as of the last response; None before the first."""
        return None if self._newest is None else describe(name, self._newest, self._info)

    def _measure(self, snapshot: Snapshot, now_s: float) -> ServerRates:
        before = self._snapshots[0] if self._snapshots else None
        measured = measure(snapshot, before and before[1], None if before is None else now_s - before[0])
        if before is not None and measured.span_s is None:
            # It restarted or changed its model: older snapshots do not count.
            self._snapshots.clear()
            self._info_due_s = -math.inf
        self._snapshots.append((now_s, snapshot))
        while len(self._snapshots) > 1 and now_s - self._snapshots[1][0] >= self._options.window_s:
            self._snapshots.popleft()
        return measured

    def _ask(self, engine: Engine, now_s: float) -> None:
        if now_s < self._info_due_s:
            return
        self._info_due_s = now_s + _INFO_INTERVAL_S
        info = ask_info(engine, base_of(self._url), lambda url: fetch(url, self._access))
        self._info = completed(info, self._arguments)
        self._theory = _theory(self._options, self._info)

    def _compare(self, measured: ServerRates) -> TheoryComparison | None:
        return None if self._theory is None else compare(measured, self._theory)


def _theory(options: ServingOptions, info: ServerSetup) -> Theory | None:
    """The theoretical bounds of a server; None when its model or GPU is unknown."""
    name = options.gpu or info.gpu_name
    gpu = find_gpu(load_peaks(), name) if name else None
    path = options.model_config_file or (f"{info.model}/config.json" if info.model else None)
    if gpu is None or path is None:
        return None
    try:
        config = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        # The model may be in another container's file system.
        return None
    model = served_model(config, info.arguments) if isinstance(config, dict) else None
    layout = layout_of(info, tp=options.tp, pp=options.pp, dp=options.dp)
    return None if model is None or layout is None else theory_of(model, layout, gpu)


def _access(options: ServingOptions) -> ServerAccess:
    file = None if options.authorization_file is None else Path(options.authorization_file)
    if file is not None and not file.is_file():
        raise ConfigError(f"authorization_file: {file} does not exist.")
    tls = client_context(
        ca=options.ca, certificate=options.certificate, key=options.key, insecure=options.insecure
    )
    return ServerAccess(timeout_s=options.timeout_s, authorization_file=file, tls=tls)

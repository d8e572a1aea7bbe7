"""Probes the facts of a node; all files are read below a root, for tests."""

from __future__ import annotations

import asyncio
import contextlib
import platform
import shutil
import socket
from collections.abc import Mapping
from importlib.machinery import PathFinder
from pathlib import Path
from tempfile import TemporaryDirectory

import pynvml

from perfd import __version__
from perfd.capture.node import free_bytes, pids, size_bytes
from perfd.capture.nsys import Installation, NsysCli, find_libdw, find_nsys, importer_problem, parse_version
from perfd.config import (
    HISTORY_REPAIR_SUFFIX,
    AgentConfig,
    AggregatorConfig,
    GatewayConfig,
    HistoryConfig,
    NatsGatewayConfig,
)
from perfd.doctor.capture_probe import probe_jax, probe_kineto_socket, probe_py_spy
from perfd.doctor.clock_sync import read_clock
from perfd.doctor.nccl_probe import active_infiniband, probe_nccl_settings
from perfd.doctor.node_facts import (
    AggregatorFacts,
    DirectoryFacts,
    GatewayFacts,
    GpuFacts,
    HistoryFacts,
    HistoryServerFacts,
    NodeFacts,
    NsysFacts,
    NvmlFacts,
    ProcessFacts,
)
from perfd.doctor.storage_probe import probe_reports, probe_upload
from perfd.doctor.stream_probe import probe_stream
from perfd.errors import CaptureError, PerfdError
from perfd.net import NatsConnector, split_address
from perfd.net.postgres_extra import require_postgres

_CONNECT_TIMEOUT_S = 2.0
"""For the connection to the aggregator. Chosen, not measured."""
_MAX_NOTE_CHARACTERS = 1_000
"""How much is read of the first line of a note that a capture's wrapper left."""
_NCCL_PLUGIN = "libnccl-profiler-perfd.so"
_KINETO_VARIABLES = (
    "KINETO_USE_DAEMON",
    "KINETO_IPC_SOCKET_DIR",
    "KINETO_CONFIG",
    "KINETO_ONDEMAND_TRACE_DIR",
)


def probe(
    config: AgentConfig,
    *,
    node: str,
    spool: Path,
    configured: bool,
    environment: Mapping[str, str],
    root: Path = Path("/"),
    aggregator: AggregatorConfig | None = None,
    gateway: GatewayConfig | None = None,
) -> NodeFacts:
    """All facts for the checks. `configured`: an operator wrote the configuration."""
    captures = Path(config.capture.output_directory or spool / "captures")
    installation = find_nsys(config.capture.nsys_path, environment.get("PATH"), root=root)
    promtool = shutil.which("promtool", path=environment.get("PATH"))
    return NodeFacts(
        perfd_version=__version__,
        python_version=platform.python_version(),
        nvml=probe_nvml(),
        nsys=probe_nsys(installation, root=root),
        captures_enabled=config.capture.enabled,
        perf_event_paranoid=_integer(Path(config.proc) / "sys/kernel/perf_event_paranoid"),
        processes=probe_processes(Path(config.proc)),
        spool=probe_directory(spool),
        spool_max_bytes=config.spool.max_bytes,
        captures=probe_directory(captures),
        captures_min_free_bytes=config.capture.min_free_bytes,
        captures_used_bytes=_used_bytes(captures),
        captures_max_bytes=config.capture.max_bytes,
        clock=read_clock(),
        nccl_plugin=find_nccl_plugin(),
        shared_memory=probe_directory(Path(environment.get("PERFD_NCCL_DIR") or "/dev/shm")),  # noqa: S108
        nccl_settings=probe_nccl_settings(environment, root),
        infiniband=active_infiniband(root / "sys/class/infiniband"),
        interfaces=_names(root / "sys/class/net"),
        kineto={name: environment[name] for name in _KINETO_VARIABLES if name in environment},
        kineto_socket=probe_kineto_socket(config.capture.kineto, Path(config.proc)),
        jax=probe_jax(config.capture, Path(config.proc)),
        py_spy=probe_py_spy(config.capture, environment, Path(config.proc)),
        aggregator=probe_aggregator(config.uplink.address, configured=configured),
        uploads=probe_upload(config.capture.object_storage, node, environment),
        reports=None if aggregator is None else probe_reports(aggregator.object_storage),
        history=None if aggregator is None else probe_history(aggregator.history),
        gateway=None if gateway is None else probe_gateway(gateway.nats),
        stream=None if aggregator is None or aggregator.nats is None else probe_stream(aggregator.nats),
        promtool=Path(promtool) if promtool else None,
    )


def probe_gateway(config: NatsGatewayConfig) -> GatewayFacts:
    """Whether NATS can be reached as the gateway does, and takes its largest batches."""
    servers = ", ".join(config.servers)
    try:
        connector = NatsConnector(config, key="nats", name="perfd doctor")
        return GatewayFacts(
            servers=servers,
            max_payload_bytes=asyncio.run(connector.max_payload_bytes()),
            needed_bytes=config.max_message_bytes,
        )
    except PerfdError as error:
        return GatewayFacts(servers=servers, needed_bytes=config.max_message_bytes, error=str(error))


def probe_history(config: HistoryConfig) -> HistoryFacts:
    """Whether the directory of the history file can be written, or its database be reached."""
    if config.url is not None:
        return HistoryFacts(directory=None, max_bytes=0, server=probe_history_server(config))
    if not config.path:
        return HistoryFacts(directory=None, max_bytes=config.max_bytes)
    path = Path(config.path).absolute()
    note = ""
    beside = path.with_name(path.name + HISTORY_REPAIR_SUFFIX)
    with contextlib.suppress(OSError), beside.open(encoding="utf-8", errors="replace") as file:
        note = file.readline(_MAX_NOTE_CHARACTERS).strip()
    directory = probe_directory(path.parent)
    return HistoryFacts(directory=directory, max_bytes=config.max_bytes, repair=note)


def probe_history_server(config: HistoryConfig) -> HistoryServerFacts:
    """Connect, and check the version, the encoding, the rights and the tables."""
    place = ""
    try:
        require_postgres()
        # With the extra only.
        from perfd.net.postgres_requirements import require_database  # noqa: PLC0415
        from perfd.net.postgres_server import PostgresServer  # noqa: PLC0415

        server = PostgresServer(config, application="perfd doctor")
        place = server.place
        with server.connect() as connection:
            return HistoryServerFacts(
                place=place,
                version=connection.info.parameter_status("server_version") or "",
                schema=require_database(connection, place),
                encrypted=connection.pgconn.ssl_in_use,
            )
    except PerfdError as error:
        return HistoryServerFacts(place=place, error=str(error))


def probe_nvml() -> NvmlFacts:
    """Query the driver; failures are facts, too."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError_LibraryNotFound:
        return NvmlFacts(library_missing=True)
    except pynvml.NVMLError as error:
        return NvmlFacts(error=str(error))
    try:
        gpus = [_gpu(index) for index in range(pynvml.nvmlDeviceGetCount())]
        return NvmlFacts(driver=_text(pynvml.nvmlSystemGetDriverVersion()), gpus=gpus)
    except pynvml.NVMLError as error:
        return NvmlFacts(error=str(error))
    finally:
        pynvml.nvmlShutdown()


def _gpu(index: int) -> GpuFacts:
    handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    try:
        gpm = bool(pynvml.nvmlGpmQueryDeviceSupport(handle).isSupportedDevice)
    except (pynvml.NVMLError_FunctionNotFound, pynvml.NVMLError_NotSupported):
        gpm = False
    except pynvml.NVMLError:
        gpm = None
    return GpuFacts(index=index, name=_text(pynvml.nvmlDeviceGetName(handle)), gpm=gpm)


def probe_nsys(installation: Installation | None, *, root: Path) -> NsysFacts:
    """Run nsys and its importer once for their versions, and look for libdw, which is often missing."""
    if installation is None:
        return NsysFacts()
    try:
        version = parse_version(NsysCli(installation.nsys).run(["--version"]).output)
    except CaptureError:
        version = None
    beside = [installation.importer.resolve().parent] if installation.importer else []
    return NsysFacts(
        installation=installation,
        version=version,
        importer_problem=importer_problem(installation.importer) if installation.importer else "",
        libdw=find_libdw(root=root, beside=beside),
    )


def probe_processes(proc: Path) -> ProcessFacts:
    """How many processes' environments are unreadable."""
    total = unreadable = 0
    for pid in pids(proc):
        total += 1
        try:
            with (proc / str(pid) / "environ").open("rb") as file:
                file.read(1)
        except PermissionError:
            unreadable += 1
        except OSError:
            continue  # Ended meanwhile.
    return ProcessFacts(total=total, unreadable=unreadable)


def probe_directory(path: Path) -> DirectoryFacts:
    """Whether a directory, or its nearest existing parent, is writable, and its free space."""
    try:
        existing = _nearest_existing(path)
        # Permissions are not sufficient: root may write everywhere, but not on a read-only mount.
        with TemporaryDirectory(prefix=".perfd-doctor-", dir=existing):
            return DirectoryFacts(path=path, free_bytes=free_bytes(existing))
    except OSError as error:
        return DirectoryFacts(path=path, free_bytes=0, problem=error.strerror or str(error))


def _nearest_existing(path: Path) -> Path:
    """The path itself or its nearest parent that exists; raises OSError if that cannot be known."""
    try:
        # Since Python 3.14 `Path.exists` is false for errors, too, such as a name that is too long.
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return _nearest_existing(path.parent)
    return path


def _used_bytes(path: Path) -> int:
    try:
        return size_bytes(path)
    except OSError:
        return 0  # `probe_directory` reports unreadable directories.


def probe_aggregator(address: str, *, configured: bool) -> AggregatorFacts:
    """Try to open a TCP connection."""
    error = ""
    try:
        socket.create_connection(split_address(address), timeout=_CONNECT_TIMEOUT_S).close()
    except OSError as failure:
        error = failure.strerror or str(failure)
    except PerfdError as failure:
        error = str(failure)
    return AggregatorFacts(address=address, configured=configured, error=error)


def find_nccl_plugin() -> Path | None:
    """The NCCL profiler plugin of this installation; None if it was not built."""
    # Found by name: doctor does not import collectors.
    spec = PathFinder.find_spec("perfd_collectors")
    folders = [Path(place) / "nccl" for place in (spec.submodule_search_locations or ())] if spec else []
    return next((folder / _NCCL_PLUGIN for folder in folders if (folder / _NCCL_PLUGIN).is_file()), None)


def _names(folder: Path) -> list[str]:
    try:
        return sorted(entry.name for entry in folder.iterdir())
    except OSError:
        return []


def _integer(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value

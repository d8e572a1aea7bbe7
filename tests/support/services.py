"""Real Prometheus, Alertmanager and VictoriaMetrics on loopback, for tests and measurements against them.

Each needs its Debian package: `prometheus`, `prometheus-alertmanager`, `victoria-metrics`.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Self

_START_WITHIN_S = 60.0
_POLL_S = 0.02
_LAST_WORDS = 2000


class Service:
    """One server of our own; a context manager that runs from entry to exit.

    `kill` and `start` again bring it back on the same port, with what it had on disk. Raises
    `FileNotFoundError` when its program is not installed.
    """

    def __init__(
        self,
        command: Callable[[int], Sequence[str | Path]],
        *,
        ready: str,
        folder: Path,
        scheme: str = "http",
        start_within_s: float = _START_WITHIN_S,
    ) -> None:
        self.port = free_port()
        self.url = f"{scheme}://127.0.0.1:{self.port}"
        self._command = [str(part) for part in command(self.port)]
        if shutil.which(self._command[0]) is None:
            raise FileNotFoundError(f"There is no {self._command[0]} on PATH; install its package.")
        self._ready = ready
        self._start_within_s = start_within_s
        self._log = folder / f"{Path(self._command[0]).name}-{self.port}.log"
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def log(self) -> str:
        """What it wrote so far."""
        return self._log.read_text(encoding="utf-8", errors="replace") if self._log.exists() else ""

    def start(self) -> None:
        """Start it, and return when it says that it is ready; raises `OSError` when it ends instead."""
        with self._log.open("ab") as log:
            # A group of its own: killed alone, `mlflow server` leaves its workers, and the port with them.
            self._process = subprocess.Popen(self._command, stdout=log, stderr=log, start_new_session=True)
        deadline = time.monotonic() + self._start_within_s
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.kill()
                raise OSError(f"{self._command[0]} did not start: {self.log[-_LAST_WORDS:]}")
            time.sleep(_POLL_S)

    def stop(self) -> None:
        """Ask it to end, and wait."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait()
        self.kill()

    def kill(self) -> None:
        """End it at once, its own processes too."""
        if self._process is not None:
            # Nothing is left of it after a `stop`, as a rule.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None

    def pause(self) -> None:
        """Stop the process with its connections open."""
        assert self._process is not None
        os.kill(self._process.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """Let a paused process continue."""
        assert self._process is not None
        os.kill(self._process.pid, signal.SIGCONT)

    def get(self, path: str, **query: str) -> Any:
        """The JSON at a path."""
        return json.loads(self.text(path, **query))

    def text(self, path: str, **query: str) -> str:
        """What is at a path."""
        address = self.url + path + (f"?{urllib.parse.urlencode(query)}" if query else "")
        with urllib.request.urlopen(address, timeout=30) as answer:
            return str(answer.read().decode())

    def _answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=5):
                pass
            return self.url.startswith("https") or bool(self.text(self._ready))
        except (urllib.error.URLError, OSError):
            return False


def prometheus(folder: Path, configuration: str, *, retention: str = "15d") -> Service:
    """A Prometheus with this configuration file, its remote-write receiver on; `folder` holds its data."""
    path = folder / "prometheus.yml"
    path.write_text(configuration, encoding="utf-8")
    return Service(
        lambda port: [
            "prometheus",
            f"--config.file={path}",
            f"--storage.tsdb.path={folder / 'prometheus-data'}",
            f"--web.listen-address=127.0.0.1:{port}",
            f"--storage.tsdb.retention.time={retention}",
            "--web.enable-remote-write-receiver",
            "--web.enable-lifecycle",
            "--rules.alert.resend-delay=1s",
        ],
        ready="/-/ready",
        folder=folder,
    )


def alertmanager(folder: Path, configuration: str, *, web_configuration: str | None = None) -> Service:
    """An Alertmanager without a cluster; `web_configuration` is its file for TLS and passwords."""
    path = folder / "alertmanager.yml"
    path.write_text(configuration, encoding="utf-8")
    extra = []
    if web_configuration is not None:
        web = folder / "alertmanager-web.yml"
        web.write_text(web_configuration, encoding="utf-8")
        extra.append(f"--web.config.file={web}")
    return Service(
        lambda port: [
            "prometheus-alertmanager",
            f"--config.file={path}",
            f"--storage.path={folder / 'alertmanager-data'}",
            f"--web.listen-address=127.0.0.1:{port}",
            # Empty, or its gossip listens on all addresses.
            "--cluster.listen-address=",
            *extra,
        ],
        ready="/-/ready",
        folder=folder,
        scheme="http" if web_configuration is None else "https",
    )


def victoria_metrics(folder: Path) -> Service:
    """A single-node VictoriaMetrics; `folder` holds its data."""
    return Service(
        lambda port: [
            "victoria-metrics",
            f"-storageDataPath={folder / 'victoria-metrics-data'}",
            f"-httpListenAddr=127.0.0.1:{port}",
            "-retentionPeriod=1",
            "-memory.allowedPercent=20",
        ],
        ready="/health",
        folder=folder,
    )


def free_port() -> int:
    """A port of loopback that nobody has now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])

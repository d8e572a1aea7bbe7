"""An aggregator that a benchmark runs as a process of its own, and measures."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import grpc

ROOT = Path(__file__).parents[1]


class AggregatorProcess:
    """`perfd aggregator` on free ports, as a process of its own."""

    def __init__(
        self,
        folder: Path,
        *,
        program: Sequence[str] = ("-m", "perfd"),
        history: bool = False,
        tls: bool = False,
        checkout: Path = ROOT,
        **config: object,
    ) -> None:
        """`program` is what Python runs, with perfd's arguments after it; `checkout` is whose perfd.

        `config` are further keys of the aggregator's configuration.
        """
        self._folder = folder
        self._program = program
        self._checkout = checkout
        self._config: dict[str, Any] = (
            {"history": {"path": str(folder / "history.sqlite")}} if history else {}
        ) | config
        self.credentials: grpc.ChannelCredentials | None = None
        if tls:
            self._config["tls"] = _certificates(folder)
            self._config["agent_identity"] = {"any_node": ["*"]}
            files = (folder / name for name in ("ca.pem", "peer.key", "peer.pem"))
            self.credentials = grpc.ssl_channel_credentials(*(file.read_bytes() for file in files))

    def __enter__(self) -> Self:
        command = [sys.executable, "-P", *self._program, "aggregator", "--log-json"]
        config = self._folder / "aggregator.yaml"
        # JSON is YAML.
        config.write_text(json.dumps(self._config), encoding="utf-8")
        command += ["--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", "--config", str(config)]
        path = os.pathsep.join(map(str, (self._checkout, self._checkout / "collectors")))
        log = self._folder / "aggregator.log"
        with log.open("wb") as stderr:
            self._process = subprocess.Popen(
                command, stderr=stderr, cwd=self._checkout, env={**os.environ, "PYTHONPATH": path}
            )
        while not (found := [line for line in _entries(log) if "http" in line]):
            if self._process.poll() is not None:
                raise RuntimeError(log.read_text(encoding="utf-8"))
            time.sleep(0.05)
        self.grpc, self.http = found[0]["agents"], found[0]["http"]
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait()

    def page(self) -> bytes:
        """Its series as they are sent, compressed by gzip."""
        request = urllib.request.Request(f"http://{self.http}/metrics", headers={"Accept-Encoding": "gzip"})
        with urllib.request.urlopen(request, timeout=60) as response:
            assert response.headers["Content-Encoding"] == "gzip"
            return bytes(response.read())

    def values(self) -> dict[str, float]:
        """Series without labels of its page."""
        page = gzip.decompress(self.page()).decode()
        rows = (line.split(" ") for line in page.splitlines() if not line.startswith("#") and "{" not in line)
        return {name: float(value) for name, value in rows}

    def cpu_s(self) -> float:
        """CPU time that the process has used."""
        stat = Path(f"/proc/{self._process.pid}/stat").read_text(encoding="ascii")
        fields = stat.rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def peak_bytes(self) -> int:
        """The most memory that it has held."""
        status = Path(f"/proc/{self._process.pid}/status").read_text(encoding="ascii")
        return next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmHWM"))


def _entries(log: Path) -> list[dict[str, Any]]:
    """The complete lines of a log in JSON."""
    lines = log.read_text(encoding="utf-8").splitlines(keepends=True)
    return [json.loads(line) for line in lines if line.startswith("{") and line.endswith("\n")]


def _certificates(folder: Path) -> dict[str, str]:
    """The configuration of TLS with a certificate that both sides show, and the authority that signed it."""
    key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
    peer = ["-CA", "ca.pem", "-CAkey", "ca.key", "-addext", "subjectAltName=IP:127.0.0.1,DNS:agent"]
    for name, more in (("ca", []), ("peer", [*peer, "-addext", "basicConstraints=CA:FALSE"])):
        files = ["-keyout", f"{name}.key", "-out", f"{name}.pem", "-subj", f"/CN={name}"]
        command = ["openssl", "req", "-x509", *key, *files, *more]
        subprocess.run(command, check=True, capture_output=True, cwd=folder)
    return {
        "certificate": str(folder / "peer.pem"),
        "key": str(folder / "peer.key"),
        "ca": str(folder / "ca.pem"),
    }

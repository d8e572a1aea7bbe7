"""Members of a group as processes, and their answers."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self

from tests.support.services import free_port

ROOT = Path(__file__).parents[2]
PARTITIONS = 4
LEASE_S = float(os.environ.get("TEST_LEASE_S", "1.5"))
"""Half the default, since tests wait for it."""


class Member:
    """One aggregator of a group; a context manager that runs from entry to exit."""

    def __init__(
        self,
        folder: Path,
        servers: Sequence[str],
        name: str,
        *,
        lease_s: float = LEASE_S,
        partitions: int = PARTITIONS,
        replicas: int = 1,
        nkey_file: str | None = None,
        cluster: str = "default",
        checkout: Path = ROOT,
        python: str = sys.executable,
        program: Sequence[str] = ("-m", "perfd"),
        environment: Mapping[str, str] = MappingProxyType({}),
        **config: Any,
    ) -> None:
        """`checkout` is whose perfd `python` runs; another `python` runs the one that is installed for it.

        `program` is what Python runs; `config` are further keys.
        """
        self.address = f"http://127.0.0.1:{free_port()}"
        self._log = folder / f"{name}.log"
        self._config = folder / f"{name}.yaml"
        self._command = [python, *program, "aggregator", "--config", str(self._config)]
        path = os.pathsep.join(map(str, (checkout, checkout / "collectors")))
        self._environment = {**os.environ, **environment, "PYTHONPATH": path}
        if python != sys.executable:
            del self._environment["PYTHONPATH"]
        self._checkout = checkout
        group = {"partitions": partitions, "lease_s": lease_s}
        nats = {
            "servers": list(servers),
            "cluster": cluster,
            "max_bytes": 64 << 20,
            "replicas": replicas,
            "nkey_file": nkey_file,
            "group": group,
        }
        document = {"http_listen": self.address.removeprefix("http://"), "nats": nats, **config}
        self._config.write_text(json.dumps(document))
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.signal(signal.SIGCONT)
        self.kill()

    @property
    def log(self) -> str:
        return self._log.read_text()

    def start(self) -> None:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command, stderr=log, env=self._environment, cwd=self._checkout
            )

    def signal(self, number: int) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(number)

    def pause(self) -> None:
        """Stop the process with its connections open."""
        self.signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let a paused process continue."""
        self.signal(signal.SIGCONT)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def stop(self) -> None:
        """Terminate it and wait."""
        assert self._process is not None
        self._process.terminate()
        self._process.wait(30.0)

    def get(self, path: str) -> Any:
        """The JSON document at a path; None without an answer."""
        try:
            with urllib.request.urlopen(self.address + path, timeout=10.0) as response:
                return json.load(response)
        except (OSError, urllib.error.URLError):
            return None

    def metrics(self, partition: int) -> dict[str, float]:
        """Series without labels of a partition's page; empty while the partition does not answer."""
        url = f"{self.address}/metrics?partition={partition}"
        try:
            with urllib.request.urlopen(url, timeout=10.0) as response:
                lines = response.read().decode().splitlines()
        except (OSError, urllib.error.URLError):
            return {}
        rows = (line.split(" ") for line in lines if not line.startswith("#") and "{" not in line)
        return {name: float(value) for name, value in rows}

    def holders(self) -> list[str | None]:
        """The member that holds each partition."""
        found = self.get("/api/v1/group")
        return [one["member"] for one in found["partitions"]] if found else [None] * PARTITIONS

    def newest_step(self, job: str) -> int:
        """A job's newest step; 0 while its partition does not answer."""
        found = self.get("/api/v1/fleet")
        rows = found["jobs"] if found else []
        return next((row["step"] or 0 for row in rows if row["name"] == job), 0)


def seconds_until(true: Any, wait_s: float = 180.0) -> float:
    """Seconds until `true()` holds; raises `TimeoutError`."""
    started_s = time.monotonic()
    while not true():
        if time.monotonic() - started_s > wait_s:
            raise TimeoutError
        time.sleep(0.02)
    return time.monotonic() - started_s

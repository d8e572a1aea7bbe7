"""Real PostgreSQL servers on loopback. Needs the Debian package `postgresql`."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path
from typing import Any, Self

from tests.support.services import free_port

_BIN = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: int(path.parent.name))
OWNER = "owner"
USER = "perfd"
GUARDED = "guarded"
"""A role that the server asks for a password; all others may come in without."""


class PostgresCluster:
    """One server with the database `perfd`; a context manager that runs from entry to exit.

    `kill` and `start` bring it back on the same port, with what it had on disk. Raises
    `FileNotFoundError` when it is not installed.
    """

    def __init__(self, *, settings: str = "", certificate: tuple[Path, Path] | None = None) -> None:
        """`settings` are lines of postgresql.conf; with a certificate and its key it has TLS."""
        if not _BIN:
            raise FileNotFoundError("There is no PostgreSQL; install its package.")
        self.port = free_port()
        self.url = self.url_of("perfd")
        # A folder of its own: as root, the server runs as nobody, who may not enter those of tests.
        self._folder = Path(tempfile.mkdtemp(prefix="perfd-postgres-"))
        self._data, self._log = self._folder / "data", self._folder / "log"
        self._owner = pwd.getpwnam("nobody") if os.geteuid() == 0 else None
        self._own(self._folder)
        self._settings = settings
        self._certificate = certificate

    def __enter__(self) -> Self:
        self._run(
            _BIN[-1] / "initdb", "-D", self._data, "-U", OWNER, "-A", "trust", "-E", "UTF8", "--no-sync"
        )
        with (self._data / "postgresql.conf").open("a") as file:
            file.write(
                f"listen_addresses = '127.0.0.1'\nport = {self.port}\nunix_socket_directories = ''\n"
                f"{self._settings}\n"
            )
        rules = self._data / "pg_hba.conf"
        rules.write_text(f"host all {GUARDED} 127.0.0.1/32 scram-sha-256\n{rules.read_text()}")
        if self._certificate is not None:
            for source, name in zip(self._certificate, ("server.crt", "server.key"), strict=True):
                copied = shutil.copy(source, self._data / name)
                copied.chmod(0o600)
                self._own(copied)
            with (self._data / "postgresql.conf").open("a") as file:
                file.write("ssl = on\n")
        self.start()
        self.sql(f"CREATE ROLE {USER} LOGIN", database="postgres")
        self.sql(f"CREATE DATABASE perfd OWNER {USER}", database="postgres")
        return self

    def __exit__(self, *_: object) -> None:
        self.resume()
        self.kill()
        shutil.rmtree(self._folder, ignore_errors=True)

    @property
    def log(self) -> str:
        """What it wrote so far."""
        return self._log.read_text(encoding="utf-8", errors="replace") if self._log.exists() else ""

    def url_of(self, database: str, *, user: str = USER) -> str:
        """The address of a database."""
        return f"postgresql://{user}@127.0.0.1:{self.port}/{database}"

    def start(self) -> None:
        """Start it, and return when it takes connections."""
        self._run(_BIN[-1] / "pg_ctl", "start", "-D", self._data, "-l", self._log, "-w", "-t", "60")

    def stop(self) -> None:
        """Stop it in order: clients are disconnected."""
        self._run(_BIN[-1] / "pg_ctl", "stop", "-D", self._data, "-m", "fast", "-w")

    def kill(self) -> None:
        """End all of its processes at once, as a machine that is switched off."""
        killed = self._signal(signal.SIGKILL)
        for process in killed:
            while _runs(process):
                os.sched_yield()
        # In a container nobody may look after the dead, and to PostgreSQL they run.
        (self._data / "postmaster.pid").unlink(missing_ok=True)

    def pause(self) -> None:
        """Stop all of its processes with their connections open."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let paused processes continue."""
        self._signal(signal.SIGCONT)

    def limit_files(self, process: int, size_bytes: int) -> None:
        """Have a process of the server write no file beyond a size: to it the disk is full."""
        limit = f"--fsize={size_bytes}:unlimited"
        self._run("prlimit", f"--pid={process}", limit)

    def sql(self, query: str, *, database: str = "perfd", user: str = OWNER) -> list[tuple[Any, ...]]:
        """Run a statement; returns its rows."""
        with self.connect(database, user=user) as connection:
            cursor = connection.execute(query)
            return cursor.fetchall() if cursor.description else []

    def connect(self, database: str, *, user: str = OWNER) -> Any:
        """A connection beside perfd, in autocommit mode."""
        import psycopg  # noqa: PLC0415  (only where the tests run that need it)

        return psycopg.connect(
            host="127.0.0.1", port=self.port, dbname=database, user=user, autocommit=True, connect_timeout=10
        )

    def program(self, name: str, *arguments: str | Path) -> str:
        """Run one of PostgreSQL's programs against the database; returns what it prints."""
        where = ["-h", "127.0.0.1", "-p", str(self.port), "-U", OWNER]
        return subprocess.run(
            [str(_BIN[-1] / name), *where, *map(str, arguments)], check=True, capture_output=True, text=True
        ).stdout

    def processes(self) -> list[int]:
        """The postmaster and its children; none when it does not run."""
        try:
            postmaster = int((self._data / "postmaster.pid").read_text().split("\n")[0])
        except (OSError, ValueError):
            return []
        with contextlib.suppress(OSError):
            children = Path("/proc", str(postmaster), "task", str(postmaster), "children").read_text()
            return [postmaster, *map(int, children.split())]
        return []

    def _signal(self, number: signal.Signals) -> list[int]:
        processes = self.processes()
        for process in processes:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, number)
        return processes

    def _own(self, path: Path) -> None:
        if self._owner is not None:
            os.chown(path, self._owner.pw_uid, self._owner.pw_gid)

    def _run(self, program: str | Path, *arguments: str | Path) -> None:
        command = [str(program), *map(str, arguments)]
        if self._owner is not None:
            # A program does that, not `subprocess`: it would then fork a process in which gRPC has threads.
            who = (f"--reuid={self._owner.pw_uid}", f"--regid={self._owner.pw_gid}", "--clear-groups")
            command = ["setpriv", *who, *command]
        done = subprocess.run(
            command,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            cwd=self._folder,
        )
        if done.returncode:
            raise OSError(f"{program} ended with {done.returncode}: {done.stderr[-2000:]} {self.log[-2000:]}")


def _runs(process: int) -> bool:
    """Whether it is there, and not only waits for its parent to look."""
    try:
        return Path("/proc", str(process), "stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False

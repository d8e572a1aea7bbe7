"""The command line of Nsight Systems, and its output.

The commands and their exit codes were tested with nsys 2022.4.2, 2024.2.3 and 2025.3.1.
"""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from perfd.capture.selection import slug
from perfd.errors import CaptureError
from perfd.sandbox.confined_program import confined_command

START_TIMEOUT_S = 30.0
"""For `start`, which returns within seconds on a quiet node. Chosen."""
STOP_TIMEOUT_S = 150.0
"""`stop` imports the report before it returns; 5 s were seen for 400,000 events."""
_SESSION_COLUMNS = ("ID", "TIME", "STATE", "LAUNCH", "NAME")
_ROUTINE = ("Generating ", "Generated:", "[1/1]")
_GPU_METRICS_OPTIONS = ("--gpu-metrics-devices=all", "--gpu-metrics-device=all")
"""The first is the output of 2024.5 and later, the second that of older releases."""


class SessionState(StrEnum):
    """States of a session that perfd acts on; nsys has more."""

    LAUNCHED = "Launched"
    """The application runs and nothing is collected."""
    COLLECTION = "Collection"
    STARTED = "Started"
    """Collecting without an application: what `start` of an unknown session creates."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """A row of `nsys sessions list`."""

    id: str
    state: str
    launches: int
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Completed:
    """An nsys command that ended. Exit code 0 does not mean success."""

    code: int
    output: str

    @property
    def complaint(self) -> str:
        """The first informative line, as a reason; nsys' routine output is skipped."""
        lines = (line.strip() for line in self.output.splitlines())
        files = {str(path) for path in parse_generated(self.output)}
        informative = (line for line in lines if line and not line.startswith(_ROUTINE) and line not in files)
        return next(informative, f"exit code {self.code}")


def session_name(job: str, unique: str) -> str:
    """The name of the session that `perfd run` launches a job in; `unique` distinguishes runs of a job."""
    return f"{session_prefix(job)}{slug(unique)}"


def session_prefix(job: str) -> str:
    """The prefix of the names of a job's sessions. A slug has no dot, which makes it unique to the job."""
    return f"perfd.{slug(job)}."


def parse_sessions(text: str) -> list[Session]:
    """The sessions in the output of `nsys sessions list`; unknown rows are skipped."""
    sessions: list[Session] = []
    columns: list[str] = []
    for line in text.splitlines():
        words = line.split(maxsplit=len(columns) - 1) if columns else line.split()
        if not columns:
            columns = words if set(_SESSION_COLUMNS) <= set(words) else []
        elif len(words) == len(columns):
            row = dict(zip(columns, words, strict=True))
            launches = int(row["LAUNCH"]) if row["LAUNCH"].isdecimal() else 0
            sessions.append(
                Session(id=row["ID"], state=row["STATE"], launches=launches, name=row["NAME"].strip())
            )
    return sessions


def parse_generated(text: str) -> list[Path]:
    """The files that `nsys stop` reports as generated."""
    lines = iter(text.splitlines())
    for line in lines:
        if line.strip() == "Generated:":
            break
    paths: list[Path] = []
    for line in lines:
        if not line.strip().startswith("/"):
            break
        paths.append(Path(line.strip()))
    return paths


def importer_problem(importer: Path) -> str:
    """Why QdstrmImporter does not run here; otherwise empty.

    nsys queries its version before each import, and leaves only a .qdstrm if that fails.
    """
    try:
        done = NsysCli(importer).run(["--version"])
    except CaptureError as error:
        return str(error)
    return done.complaint if done.code else ""


class NsysCli:
    """Runs one nsys. Of remote input, only a sanitized name becomes part of a command."""

    def __init__(self, nsys: Path) -> None:
        self._nsys = nsys

    def run(self, arguments: Sequence[str], *, timeout_s: float = START_TIMEOUT_S) -> Completed:
        """Run one command to its end; raises `CaptureError` if it does not end or cannot run."""
        return self._run(arguments[0], [str(self._nsys), *arguments], timeout_s)

    def _run(self, verb: str, command: Sequence[str], timeout_s: float) -> Completed:
        try:
            done = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                timeout=timeout_s,
                check=False,
                # Ctrl-C in the terminal of `perfd run` must not cut an import short.
                start_new_session=True,
            )
        except subprocess.TimeoutExpired as error:
            raise CaptureError(f"nsys {verb} did not end within {timeout_s:.0f} s.") from error
        except OSError as error:
            raise CaptureError(f"Cannot run {self._nsys}: {error.strerror}.") from error
        return Completed(code=done.returncode, output=done.stdout.decode(errors="replace"))

    def sessions(self) -> list[Session]:
        """The sessions of this user on this node."""
        return parse_sessions(self.run(["sessions", "list"]).output)

    def session(self, name: str) -> Session | None:
        """One session by name; None if there is none."""
        return next((session for session in self.sessions() if session.name == name), None)

    def start(self, name: str, output: Path, *, gpu_metrics: bool = False) -> None:
        """Start collecting in a launched session; otherwise raises `CaptureError` and leaves nothing behind.

        `start` of a session that does not exist returns 0 and silently creates an empty one; the session is
        therefore checked afterwards, not only before.
        """
        spellings = _GPU_METRICS_OPTIONS if gpu_metrics else ("",)
        for spelling in spellings:
            # --sample=none alone would still record context switches of the process tree.
            arguments = ["start", f"--session={name}", "-o", str(output), "--sample=none", "--cpuctxsw=none"]
            done = self.run([*arguments, spelling] if spelling else arguments)
            if not (spelling and done.code and "--gpu-metrics-device" in done.output):
                break
        if done.code:
            raise CaptureError(f"nsys start failed: {done.complaint}")
        session = self.session(name)
        if session is None or session.state != SessionState.COLLECTION or not session.launches:
            self.quiet(name)
            raise CaptureError(f"The nsys session {name} ended before the capture could start.")

    def stop(self, name: str) -> Completed:
        """Stop collecting and wait for the report."""
        return self.run(["stop", f"--session={name}"], timeout_s=STOP_TIMEOUT_S)

    def quiet(self, name: str) -> list[Path]:
        """Make a session stop collecting, by any means; returns files to delete.

        `cancel` is not implemented in the tested builds, so `stop` follows; a session that still
        collects is shut down, which does not affect its application.
        """
        generated: list[Path] = []
        for arguments in (["cancel"], ["stop"], ["shutdown", "--kill=none"]):
            session = self.session(name)
            if session is None or session.state not in (SessionState.COLLECTION, SessionState.STARTED):
                break
            # A hanging command must not block the next one.
            with suppress(CaptureError):
                done = self.run([*arguments, f"--session={name}"], timeout_s=STOP_TIMEOUT_S)
                generated += parse_generated(done.output)
        return generated

    def stop_all(self, names: Sequence[str]) -> list[Completed]:
        """Stop several sessions at the same time, in order of `names`."""
        with ThreadPoolExecutor(max_workers=max(1, len(names))) as pool:
            return list(pool.map(self.stop, names))

    def export(self, report: Path) -> Path:
        """Export a report to SQLite next to it; raises `CaptureError` with nsys's error.

        Includes blobs, which hold NCCL's communicators and sizes, if this nsys has the option. The report's
        content is not trusted: nsys can read only that file, and write only into an empty folder.
        """
        sqlite = report.with_suffix(".sqlite")
        with tempfile.TemporaryDirectory(prefix=".export-", dir=report.parent) as folder:
            made = Path(folder) / sqlite.name
            for options in (["--include-blobs=true"], []):
                made.unlink(missing_ok=True)
                command = [str(self._nsys), "export", "--type", "sqlite", "-o", str(made), *options]
                confined = confined_command([*command, str(report)], read=[report], write=[Path(folder)])
                done = self._run("export", confined, STOP_TIMEOUT_S)
                if not done.code and made.is_file() and not made.is_symlink():
                    made.replace(sqlite)
                    return sqlite
        raise CaptureError(f"nsys export failed: {done.complaint}")

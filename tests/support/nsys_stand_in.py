#!/usr/bin/env python3
"""A stand-in for the command line of Nsight Systems, for machines without a GPU.

It keeps sessions as files and behaves like the real one in the states that perfd meets, its traps
included: `start` of an unknown session silently creates an empty one, an exit code of 0 does not mean a
report, `cancel` is not implemented, a report lands elsewhere when its file exists or its directory is
missing. Checked against nsys 2022.4.2, 2024.2.3 and 2025.3.1. `nsys_installation.install` makes a runnable
file of it, with these variables baked in:

NSYS_STAND_IN_STATE         directory of the session files
NSYS_STAND_IN_VERSION       what --version says
NSYS_STAND_IN_IMPORT        "0": the importer fails, only a .qdstrm is left, with exit code 0
NSYS_STAND_IN_KERNELS       kernels per process in the export, one a second
NSYS_STAND_IN_FIRST_KERNEL_S  when the first of them is, after the start of the collection
NSYS_STAND_IN_IDLE_RANKS    values of RANK, by comma, whose processes launch no kernel
NSYS_STAND_IN_REPORT_BYTES  size of a report
NSYS_STAND_IN_GPU_METRICS   the spelling of --gpu-metrics-device(s) that this version knows
NSYS_STAND_IN_SLOW_STOP_S   how long the import takes

A process of the application may have NSYS_STAND_IN_MY_KERNELS in its environment: its own number of kernels.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from pathlib import Path

# It starts once per command, thousands of times, so modules that only one command needs are imported there.
TYPE_CHECKING = False
if TYPE_CHECKING:
    import sqlite3
    from typing import Any

    Session = dict[str, Any]
INJECTION = "/opt/stand-in/libToolsInjection64.so"
MY_KERNELS = "NSYS_STAND_IN_MY_KERNELS"


def main(arguments: list[str]) -> int:
    """Run one nsys command and return its exit code."""
    if arguments[:1] == ["--version"]:
        say(f"NVIDIA Nsight Systems version {setting('VERSION', '2025.3.1.90-stand-in')}")
        return 0
    commands = {
        "launch": launch,
        "start": start,
        "stop": stop,
        "cancel": cancel,
        "shutdown": shutdown,
        "status": status,
        "sessions": list_sessions,
        "export": export,
    }
    if not arguments or arguments[0] not in commands:
        complain("usage: nsys [--version] <command> [options]")
        return 1
    return commands[arguments[0]](arguments[1:])


def launch(arguments: list[str]) -> int:
    """Run an application in a new session; the exit code is the application's."""
    import subprocess  # noqa: PLC0415

    parser = options()
    parser.add_argument("--session-new", required=True)
    parser.add_argument("-t", "--trace", default="cuda,nvtx")
    parser.add_argument("-w", "--show-output", default="true")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    args = parser.parse_args(arguments)
    if load(args.session_new):
        complain("Process launch is not allowed in this state.")
        return 1
    session_id = str(os.getpid() * 100 + 7)
    environment = {
        **os.environ,
        "NSYS_PROFILING_SESSION_ID": session_id,
        "CUDA_INJECTION64_PATH": INJECTION,
        "NVTX_INJECTION64_PATH": INJECTION,
    }
    # The application leads a session of its own, out of the terminal's reach; two signals are handed on
    # to it, and of the others this process dies and leaves it (seen with 2025.3.1).
    app = subprocess.Popen(args.command, env=environment, start_new_session=True)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda received, _frame: app.send_signal(received))
    # Written once: a second write could undo what a `start` wrote in between.
    save(
        {
            "id": session_id,
            "name": args.session_new,
            "state": "Launched",
            "launch": 1,
            "pid": app.pid,
            "environment": environment,
        }
    )
    code = app.wait()
    ending = required(args.session_new)
    if ending["state"] == "Collection":
        generate(ending)
    session_file(args.session_new).unlink()
    if ending["state"] == "Shutdown":
        return 0
    return 128 - code if code < 0 else code


def start(arguments: list[str]) -> int:
    """Begin to collect; the trap: a session that does not exist is created, empty."""
    parser = options()
    parser.add_argument("--session", default="default")
    parser.add_argument("-o", "--output", default="report")
    parser.add_argument("-s", "--sample")
    parser.add_argument("--cpuctxsw")
    parser.add_argument("-f", "--force-overwrite", default="false")
    parser.add_argument(setting("GPU_METRICS", "--gpu-metrics-devices"), dest="gpu_metrics")
    args, unknown = parser.parse_known_args(arguments)
    if unknown:
        complain(f"unrecognized option '{unknown[0]}'\n\nusage: nsys start [<args>]")
        return 1
    session = load(args.session)
    if session is None:
        save(
            {
                "id": str(os.getpid()),
                "name": args.session,
                "state": "Started",
                "launch": 0,
                "since": time.time(),
            }
        )
        return 0
    if session["state"] != "Launched":
        complain("Configuring is not allowed in this state.")
        return 1
    wanted = {
        "output": args.output,
        "force": args.force_overwrite == "true",
        "processes": processes(session["id"]),
    }
    save({**session, "state": "Collection", **wanted})
    return 0


def stop(arguments: list[str]) -> int:
    """Stop collecting and write the report; 0 does not mean that there is one."""
    session = named(arguments)
    if session is None:
        return 1
    if session["state"] == "Started":
        session_file(session["name"]).unlink()
        return 0
    if session["state"] != "Collection":
        complain("Collection stop is not allowed in this state.")
        return 1
    try:
        generate(session)
    except OSError as error:
        complain(f"Failed to write the report: {error.strerror}.")
        return 1
    finally:
        save({**session, "state": "Launched"})
    return 0


def cancel(arguments: list[str]) -> int:
    """Fail as the real one does in the builds that were tried."""
    del arguments
    complain("Operation cancel is not implemented. Try to shut down the session instead.")
    return 1


def shutdown(arguments: list[str]) -> int:
    """End a session; its application survives only with --kill=none."""
    parser = options()
    parser.add_argument("--session", default="default")
    parser.add_argument("--kill", default="sigterm")
    args = parser.parse_args(arguments)
    session = load(args.session)
    if session is None:
        complain(f"Failed to find session: {args.session}.")
        return 1
    save({**session, "state": "Shutdown"})
    if args.kill != "none":
        os.kill(session["pid"], signal.SIGTERM)
    return 0


def status(arguments: list[str]) -> int:
    """Say whether a session collects."""
    session = named(arguments)
    if session is None:
        return 1
    say("collecting data" if session["state"] == "Collection" else "ready")
    return 0


def list_sessions(arguments: list[str]) -> int:
    """Print the table of sessions."""
    del arguments
    say(f"{'ID':>16} {'TIME':>12} {'STATE':>27} LAUNCH NAME")
    for file in sorted(state_directory().glob("*.json")):
        session = json.loads(file.read_text())
        columns = f"{session['id']:>16} {'00:01':>12} {session['state']:>27} {session['launch']:>6}"
        say(f"{columns} {session['name']}")
    return 0


def export(arguments: list[str]) -> int:
    """Write an SQLite export: kernels of each process, and the places where secrets are in a real one."""
    parser = options()
    parser.add_argument("-t", "--type", default="sqlite")
    parser.add_argument("-o", "--output", required=True)
    parser.add_argument("-f", "--force-overwrite", default="false")
    parser.add_argument("--include-blobs", default="false")
    parser.add_argument("report")
    args = parser.parse_args(arguments)
    report = Path(args.report)
    if not report.exists():
        complain(f"Exportation error: File not found: '{report}'.")
        return 1
    with report.open("rb") as file:
        content = json.loads(file.readline())
    import sqlite3  # noqa: PLC0415

    database = sqlite3.connect(args.output)
    fill(database, content)
    database.commit()
    database.close()
    return 0


def fill(database: sqlite3.Connection, content: Session) -> None:
    """The tables of an export that perfd reads or must redact."""
    database.executescript(
        """
        CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT);
        CREATE TABLE META_DATA_CAPTURE (name TEXT, value TEXT);
        CREATE TABLE META_DATA_EXPORT (name TEXT, value TEXT);
        CREATE TABLE TARGET_INFO_SYSTEM_ENV
            (globalVid INT, devStateName TEXT, name TEXT, nameEnum INT, value TEXT);
        CREATE TABLE PROCESSES (globalPid INT, pid INT, name TEXT);
        CREATE TABLE ThreadNames (nameId INT, priority INT, globalTid INT);
        CREATE TABLE ANALYSIS_FILE (id INT, filename TEXT, content INT);
        CREATE TABLE DIAGNOSTIC_EVENT (timestamp INT, text TEXT);
        INSERT INTO META_DATA_EXPORT VALUES ('EXPORT_SCHEMA_VERSION', '3.20.3');
        """
    )
    kernels = int(setting("KERNELS", "5"))
    first_ns = round(float(setting("FIRST_KERNEL_S", "0")) * 1e9)
    if kernels:
        database.execute(
            "CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL "
            "(start INT, end INT, deviceId INT, contextId INT, streamId INT, correlationId INT, "
            "globalPid INT, demangledName INT, shortName INT, graphNodeId INT)"
        )
    database.execute("INSERT INTO StringIds VALUES (1, 'ampere_gemm'), (2, 'output of the program')")
    idle = setting("IDLE_RANKS", "").split(",")
    for name, environment in content["processes"].items():
        pid = int(name)
        rank = environment.get("RANK", "")
        for number in range(0 if rank in idle else int(environment.get(MY_KERNELS, kernels))):
            start_ns = first_ns + number * 10**9
            database.execute(
                "INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (?, ?, ?, 1, 7, ?, ?, 1, 1, NULL)",
                (start_ns, start_ns + 5, int(rank or 0), number, pid << 24),
            )
        database.execute("INSERT INTO PROCESSES VALUES (?, ?, ?)", (pid << 24, pid, "/usr/bin/python3"))
    for name, value in content["environment"].items():
        database.execute(
            "INSERT INTO META_DATA_CAPTURE VALUES ('PROCESS_0:ENVIRONMENT', ?)", (f"{name}={value}",)
        )
        database.execute(
            "INSERT INTO TARGET_INFO_SYSTEM_ENV VALUES (0, 'DeviceEnvironment', ?, 0, ?)", (name, value)
        )
        database.execute("INSERT INTO StringIds (value) VALUES (?)", (f"{name}={value}",))
        row = database.execute("SELECT max(id) FROM StringIds").fetchone()[0]
        database.execute("INSERT INTO ANALYSIS_FILE VALUES (1, 'stdout', ?)", (row,))


def generate(session: Session) -> None:
    """Write what `stop`, or the end of the application, leaves behind, and say so."""
    time.sleep(float(setting("SLOW_STOP_S", "0")))
    imported = setting("IMPORT", "1") != "0"
    suffix = ".nsys-rep" if imported else ".qdstrm"
    raw = Path(os.environ.get("TMPDIR", "/tmp")) / f"nsys-report-{os.getpid():x}.qdstrm"
    say(f"Generating '{raw}'")
    if imported:
        say(f"[1/1] [0%                          ] report{suffix}\r[1/1] [====100%] report{suffix}")
    else:
        complain("Importer error status: The importer binary and its dependencies were not found.")
        complain("Unable to retrieve the importer version: skipping importation of the QDSTRM file.")
    wanted = Path(session["output"] + suffix)
    if not wanted.parent.is_dir() or (wanted.exists() and not session["force"]):
        complain(f"Failed to create '{wanted}': File exists.")
        complain("Use `--force-overwrite true` to overwrite existing files.")
        wanted = raw.with_suffix(suffix)
    # Those that ended meanwhile are in the report too.
    found = {**session["processes"], **processes(session["id"])}
    header = {"processes": found, "environment": session["environment"]}
    body = json.dumps(header).encode() + b"\n"
    wanted.write_bytes(body.ljust(int(setting("REPORT_BYTES", "0")), b"\0"))
    wanted.chmod(0o664)
    say(f"Generated:\n    {wanted}")


def processes(session_id: str) -> dict[str, dict[str, str]]:
    """By pid, the environment of the processes that carry the session in it, as injected ones do."""
    mark = f"NSYS_PROFILING_SESSION_ID={session_id}"
    found = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        try:
            environment = (entry / "environ").read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue
        if mark in environment:
            known = dict(variable.partition("=")[::2] for variable in environment)
            found[entry.name] = {name: known[name] for name in ("RANK", MY_KERNELS) if name in known}
    return found


def named(arguments: list[str]) -> Session | None:
    """The session that --session names; None, with nsys's complaint, when there is none."""
    parser = options()
    parser.add_argument("--session", default="default")
    args = parser.parse_args(arguments)
    session = load(args.session)
    if session is None:
        complain(f"Failed to find session: {args.session}.")
    return session


def options() -> argparse.ArgumentParser:
    """A parser that does not guess from abbreviations, as nsys does not."""
    return argparse.ArgumentParser(prog="nsys", allow_abbrev=False)


def setting(name: str, default: str) -> str:
    """One of the variables of the module's description."""
    return os.environ.get(f"NSYS_STAND_IN_{name}", default)


def state_directory() -> Path:
    """Where the session files are."""
    directory = Path(os.environ["NSYS_STAND_IN_STATE"])
    directory.mkdir(parents=True, exist_ok=True)
    return directory


def session_file(name: str) -> Path:
    """The file of one session."""
    return state_directory() / f"{name}.json"


def load(name: str) -> Session | None:
    """A session by name; None when there is none."""
    try:
        session: Session = json.loads(session_file(name).read_text())
    except FileNotFoundError:
        return None
    return session


def required(name: str) -> Session:
    """A session that must exist."""
    session = load(name)
    if session is None:
        raise SystemExit(f"session {name} vanished")
    return session


def save(session: Session) -> None:
    """Write a session so that a reader never sees half of it."""
    file = session_file(session["name"])
    fresh = file.with_suffix(f".{os.getpid()}")
    fresh.write_text(json.dumps(session))
    fresh.replace(file)


def say(text: str) -> None:
    """Write to standard output."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def complain(text: str) -> None:
    """Write to standard error."""
    sys.stderr.write(text + "\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

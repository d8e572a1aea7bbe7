"""Checks of what captures need: nsys and its importer, Kineto and its socket, py-spy, and free quota."""

from __future__ import annotations

import re
from collections.abc import Mapping

from perfd.doctor.check_result import CheckResult, Level
from perfd.doctor.node_facts import NodeFacts
from perfd.formatting import data_size

_LIBRARY = re.compile(r"loading shared libraries: ([^:\s]+)")
_PACKAGES: Mapping[str, str] = {
    "libdw.so.1": "libdw1 (in dnf: elfutils-libs)",
    "libssh.so": "libssh-4 (in dnf: libssh)",
}
_MAX_PERF_EVENT_PARANOID = 2
"""Largest kernel.perf_event_paranoid with which nsys can sample CPUs (its installation guide)."""
_PTRACE_CHILDREN_ONLY = 1
_PTRACE_DISABLED = 3
"""Values of kernel.yama.ptrace_scope (Linux, Documentation/admin-guide/LSM/Yama.rst)."""


def check_nsys(facts: NodeFacts) -> CheckResult:
    """Whether nsys can capture and import reports."""
    installation = facts.nsys.installation

    def found(level: Level, what: str, fix: str = "") -> CheckResult:
        return CheckResult(check="nsys", level=level, title="captures (nsys)", what=what, fix=fix)

    if not facts.captures_enabled:
        return found(Level.OK, "disabled (capture.enabled)")
    if installation is None:
        return found(
            Level.WARN,
            "nsys not found: Nsight captures unavailable",
            "Install nsight-systems-cli, or set capture.nsys_path; captures with Kineto (perfd run --kineto)"
            " do not need it.",
        )
    where = f"{installation.nsys}, version {facts.nsys.version or 'unknown'}"
    if facts.nsys.version is None:
        return found(Level.FAIL, f"{installation.nsys} does not run", "Run it with --version for the reason.")
    if installation.may_crash_jobs:
        used = "not used" if installation.only_found else "used because of capture.nsys_path"
        what = f"{where}: its CUPTI (the first of CUDA 13.0) has crashed jobs at their first capture: {used}"
        fix = "Install a newer nsight-systems-cli, or capture with Kineto (perfd run --kineto)."
        if installation.only_found:
            fix += " To use this one anyway, set capture.nsys_path to it."
        return found(Level.WARN, what, fix)
    if installation.importer_missing:
        what = f"{where}: no QdstrmImporter at {installation.importer_expected}: no reports"
        return found(Level.FAIL, what, installation.fix_for_importer)
    return found(Level.OK, where)


def check_importer(facts: NodeFacts) -> CheckResult:
    """Whether nsys can import its raw data into a report; its exit code is 0 even if it cannot."""
    title = "nsys reports (QdstrmImporter)"
    problem = facts.nsys.importer_problem
    if facts.nsys.installation is None or not facts.captures_enabled:
        return CheckResult(check="importer", level=Level.OK, title=title, what="not needed without nsys")
    if problem:
        library = _LIBRARY.search(problem)
        package = _PACKAGES.get(library[1], f"the package with {library[1]}") if library else ""
        return CheckResult(
            check="importer",
            level=Level.FAIL,
            title=title,
            what=f"nsys stop would leave only a .qdstrm: {problem}",
            fix=f"Install {package}." if package else "Reinstall nsight-systems.",
        )
    if facts.nsys.libdw is None:
        return CheckResult(
            check="importer",
            level=Level.WARN,
            title=title,
            what="libdw.so.1 is missing: importers of 2025 would leave only a .qdstrm",
            fix=f"Install {_PACKAGES['libdw.so.1']}.",
        )
    return CheckResult(check="importer", level=Level.OK, title=title, what="works")


def check_perf_events(facts: NodeFacts) -> CheckResult:
    """Reports perf events, which only CPU sampling needs; perfd's captures do not use it."""
    level = facts.perf_event_paranoid
    what = "not readable" if level is None else f"perf_event_paranoid is {level}"
    return CheckResult(
        check="perf_event_paranoid",
        level=Level.OK,
        title="perf events",
        what=f"{what}; captures work regardless, because they do not sample CPUs",
        fix=""
        if level is None or level <= _MAX_PERF_EVENT_PARANOID
        else f"For your own nsys runs with CPU sampling: at most {_MAX_PERF_EVENT_PARANOID}.",
    )


def check_kineto(facts: NodeFacts) -> CheckResult:
    """Whether Kineto and nsys would conflict in a process: CUPTI has a single subscriber."""
    title = "Kineto"
    daemon = facts.kineto.get("KINETO_USE_DAEMON", "") not in ("", "0")
    if daemon and facts.captures_enabled and facts.nsys.installation is not None:
        return CheckResult(
            check="kineto",
            level=Level.WARN,
            title=title,
            what="KINETO_USE_DAEMON is set, but perfd run would start the job under nsys: one would fail",
            fix="Unset it, or run with perfd run --no-nsys.",
        )
    variables = " ".join(f"{name}={value}" for name, value in sorted(facts.kineto.items()))
    return CheckResult(
        check="kineto", level=Level.OK, title=title, what=variables or "no Kineto variables set"
    )


def check_kineto_socket(facts: NodeFacts) -> CheckResult:
    """Whether perfd can bind the socket that libkineto polls."""
    socket = facts.kineto_socket

    def found(level: Level, what: str, fix: str = "") -> CheckResult:
        return CheckResult(check="kineto_socket", level=level, title="Kineto socket", what=what, fix=fix)

    if not facts.captures_enabled or socket is None:
        what = "capture.kineto.enabled" if facts.captures_enabled else "capture.enabled"
        return found(Level.OK, f"not needed: {what} is off")
    if socket.problem:
        return found(Level.FAIL, f"{socket.place}: {socket.problem}", "Set capture.kineto.socket_directory.")
    if not socket.taken:
        return found(Level.OK, f"{socket.place} is free")
    if "perfd" in socket.owner:
        return found(Level.OK, f"{socket.place} is served by {socket.owner}")
    if not socket.owner:
        return found(
            Level.WARN,
            f"{socket.place} is served by a process that is not visible to this user",
            "Run doctor as root to identify it; a perfd agent is fine.",
        )
    return found(
        Level.FAIL,
        f"{socket.place} is taken by {socket.owner}",
        "Stop it (it may be dynolog), or set capture.kineto.socket_directory, and KINETO_IPC_SOCKET_DIR in "
        "the job.",
    )


def check_jax(facts: NodeFacts) -> CheckResult:
    """Whether JAX's processes of this node can be captured by their own profiler."""
    refused = {pid: reason for pid, reason in facts.jax.items() if reason}
    if not refused:
        what = "reachable" if facts.jax else "no process of this node has loaded JAX"
        count = f" in {len(facts.jax)} processes" if len(facts.jax) > 1 else ""
        return CheckResult(check="jax", level=Level.OK, title="JAX's profiler", what=f"{what}{count}")
    return CheckResult(
        check="jax",
        level=Level.WARN,
        title="JAX's profiler",
        what=f"{len(refused)} of {len(facts.jax)} processes with JAX: {next(iter(refused.values()))}",
        fix="Call jax.profiler.start_server(PORT) in the job; other tools work without it.",
    )


def check_py_spy(facts: NodeFacts) -> CheckResult:
    """Whether the stacks of a hanging job can be read."""
    spy = facts.py_spy

    def found(level: Level, what: str, fix: str = "") -> CheckResult:
        return CheckResult(
            check="py_spy", level=level, title="stacks of hanging jobs (py-spy)", what=what, fix=fix
        )

    if not facts.captures_enabled:
        return found(Level.OK, "disabled (capture.enabled)")
    if spy.path is None:
        return found(
            Level.WARN,
            "py-spy not found: stacks of hanging jobs unavailable",
            "pip install py-spy, or set capture.py_spy_path.",
        )
    scope = spy.ptrace_scope or 0
    if scope >= _PTRACE_DISABLED:
        return found(
            Level.WARN,
            f"{spy.path}, but kernel.yama.ptrace_scope is {scope}: tracing is disabled for all users",
            "Set it to 1 in /etc/sysctl.d and reboot; it cannot be lowered at run time.",
        )
    if not spy.may_trace and scope >= _PTRACE_CHILDREN_ONLY:
        return found(
            Level.WARN,
            f"{spy.path}, but kernel.yama.ptrace_scope is {scope} and this user has no CAP_SYS_PTRACE",
            "Run the agent as root or with CAP_SYS_PTRACE (systemd: AmbientCapabilities=CAP_SYS_PTRACE).",
        )
    scope_text = "any process" if spy.may_trace else "processes of this user"
    return found(Level.OK, f"{spy.path}, may trace {scope_text}")


def check_quota(facts: NodeFacts) -> CheckResult:
    """Whether earlier captures leave room for another one."""
    used, limit = facts.captures_used_bytes, facts.captures_max_bytes
    title = "capture quota"
    what = f"captures use {data_size(used)} of {data_size(limit)}"
    if used < limit:
        return CheckResult(check="quota", level=Level.OK, title=title, what=what)
    fix = f"Delete old ones in {facts.captures.path}, or raise capture.max_bytes."
    return CheckResult(
        check="quota", level=Level.FAIL, title=title, what=f"{what}: no capture can start", fix=fix
    )

"""Checks of what captures need: nsys and its importer, Kineto and its socket, py-spy, and free quota."""

from __future__ import annotations

import re
from collections.abc import Mapping

from perfd.doctor.check_result import CheckResult, check, fail, ok, warn
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


@check("nsys", "captures (nsys)")
def check_nsys(facts: NodeFacts) -> CheckResult:
    """Whether nsys can capture and import reports."""
    installation = facts.nsys.installation
    if not facts.captures_enabled:
        return ok("disabled (capture.enabled)")
    if installation is None:
        return warn(
            "nsys not found: Nsight captures unavailable",
            "Install nsight-systems-cli, or set capture.nsys_path; captures with Kineto (perfd run --kineto)"
            " do not need it.",
        )
    where = f"{installation.nsys}, version {facts.nsys.version or 'unknown'}"
    if facts.nsys.version is None:
        return fail(f"{installation.nsys} does not run", "Run it with --version for the reason.")
    if installation.may_crash_jobs:
        used = "not used" if installation.only_found else "used because of capture.nsys_path"
        what = f"{where}: its CUPTI (the first of CUDA 13.0) has crashed jobs at their first capture: {used}"
        fix = "Install a newer nsight-systems-cli, or capture with Kineto (perfd run --kineto)."
        if installation.only_found:
            fix += " To use this one anyway, set capture.nsys_path to it."
        return warn(what, fix)
    if installation.importer_missing:
        what = f"{where}: no QdstrmImporter at {installation.importer_expected}: no reports"
        return fail(what, installation.fix_for_importer)
    return ok(where)


@check("importer", "nsys reports (QdstrmImporter)")
def check_importer(facts: NodeFacts) -> CheckResult:
    """Whether nsys can import its raw data into a report; its exit code is 0 even if it cannot."""
    problem = facts.nsys.importer_problem
    if facts.nsys.installation is None or not facts.captures_enabled:
        return ok("not needed without nsys")
    if problem:
        library = _LIBRARY.search(problem)
        package = _PACKAGES.get(library[1], f"the package with {library[1]}") if library else ""
        return fail(
            f"nsys stop would leave only a .qdstrm: {problem}",
            f"Install {package}." if package else "Reinstall nsight-systems.",
        )
    if facts.nsys.libdw is None:
        return warn(
            "libdw.so.1 is missing: importers of 2025 would leave only a .qdstrm",
            f"Install {_PACKAGES['libdw.so.1']}.",
        )
    return ok("works")


@check("perf_event_paranoid", "perf events")
def check_perf_events(facts: NodeFacts) -> CheckResult:
    """Reports perf events, which only CPU sampling needs; perfd's captures do not use it."""
    level = facts.perf_event_paranoid
    what = "not readable" if level is None else f"perf_event_paranoid is {level}"
    return ok(
        f"{what}; captures work regardless, because they do not sample CPUs",
        ""
        if level is None or level <= _MAX_PERF_EVENT_PARANOID
        else f"For your own nsys runs with CPU sampling: at most {_MAX_PERF_EVENT_PARANOID}.",
    )


@check("kineto", "Kineto")
def check_kineto(facts: NodeFacts) -> CheckResult:
    """Whether Kineto and nsys would conflict in a process: CUPTI has a single subscriber."""
    daemon = facts.kineto.get("KINETO_USE_DAEMON", "") not in ("", "0")
    if daemon and facts.captures_enabled and facts.nsys.installation is not None:
        return warn(
            "KINETO_USE_DAEMON is set, but perfd run would start the job under nsys: one would fail",
            "Unset it, or run with perfd run --no-nsys.",
        )
    variables = " ".join(f"{name}={value}" for name, value in sorted(facts.kineto.items()))
    return ok(variables or "no Kineto variables set")


@check("kineto_socket", "Kineto socket")
def check_kineto_socket(facts: NodeFacts) -> CheckResult:
    """Whether perfd can bind the socket that libkineto polls."""
    socket = facts.kineto_socket
    if not facts.captures_enabled or socket is None:
        what = "capture.kineto.enabled" if facts.captures_enabled else "capture.enabled"
        return ok(f"not needed: {what} is off")
    if socket.problem:
        return fail(f"{socket.place}: {socket.problem}", "Set capture.kineto.socket_directory.")
    if not socket.taken:
        return ok(f"{socket.place} is free")
    if "perfd" in socket.owner:
        return ok(f"{socket.place} is served by {socket.owner}")
    if not socket.owner:
        return warn(
            f"{socket.place} is served by a process that is not visible to this user",
            "Run doctor as root to identify it; a perfd agent is fine.",
        )
    return fail(
        f"{socket.place} is taken by {socket.owner}",
        "Stop it (it may be dynolog), or set capture.kineto.socket_directory, and KINETO_IPC_SOCKET_DIR in "
        "the job.",
    )


@check("jax", "JAX's profiler")
def check_jax(facts: NodeFacts) -> CheckResult:
    """Whether JAX's processes of this node can be captured by their own profiler."""
    refused = {pid: reason for pid, reason in facts.jax.items() if reason}
    if not refused:
        what = "reachable" if facts.jax else "no process of this node has loaded JAX"
        count = f" in {len(facts.jax)} processes" if len(facts.jax) > 1 else ""
        return ok(f"{what}{count}")
    return warn(
        f"{len(refused)} of {len(facts.jax)} processes with JAX: {next(iter(refused.values()))}",
        "Call jax.profiler.start_server(PORT) in the job; other tools work without it.",
    )


@check("py_spy", "stacks of hanging jobs (py-spy)")
def check_py_spy(facts: NodeFacts) -> CheckResult:
    """Whether the stacks of a hanging job can be read."""
    spy = facts.py_spy
    if not facts.captures_enabled:
        return ok("disabled (capture.enabled)")
    if spy.path is None:
        return warn(
            "py-spy not found: stacks of hanging jobs unavailable",
            "pip install py-spy, or set capture.py_spy_path.",
        )
    scope = spy.ptrace_scope or 0
    if scope >= _PTRACE_DISABLED:
        return warn(
            f"{spy.path}, but kernel.yama.ptrace_scope is {scope}: tracing is disabled for all users",
            "Set it to 1 in /etc/sysctl.d and reboot; it cannot be lowered at run time.",
        )
    if not spy.may_trace and scope >= _PTRACE_CHILDREN_ONLY:
        return warn(
            f"{spy.path}, but kernel.yama.ptrace_scope is {scope} and this user has no CAP_SYS_PTRACE",
            "Run the agent as root or with CAP_SYS_PTRACE (systemd: AmbientCapabilities=CAP_SYS_PTRACE).",
        )
    scope_text = "any process" if spy.may_trace else "processes of this user"
    return ok(f"{spy.path}, may trace {scope_text}")


@check("quota", "capture quota")
def check_quota(facts: NodeFacts) -> CheckResult:
    """Whether earlier captures leave room for another one."""
    used, limit = facts.captures_used_bytes, facts.captures_max_bytes
    what = f"captures use {data_size(used)} of {data_size(limit)}"
    if used < limit:
        return ok(what)
    fix = f"Delete old ones in {facts.captures.path}, or raise capture.max_bytes."
    return fail(f"{what}: no capture can start", fix)

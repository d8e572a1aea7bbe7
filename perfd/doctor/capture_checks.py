"""Checks of what captures need besides nsys: Kineto's socket, py-spy, and free quota."""

from __future__ import annotations

from perfd.doctor.check_result import CheckResult, Level
from perfd.doctor.node_facts import NodeFacts
from perfd.formatting import data_size

_PTRACE_CHILDREN_ONLY = 1
_PTRACE_DISABLED = 3
"""Values of kernel.yama.ptrace_scope (Linux, Documentation/admin-guide/LSM/Yama.rst)."""


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

"""Judgements over what captures need beside nsys: Kineto's socket, py-spy, and room under the quota."""

from __future__ import annotations

from perfd.doctor.check_result import CheckResult, Level
from perfd.doctor.node_facts import NodeFacts
from perfd.formatting import data_size

_PTRACE_OF_CHILDREN = 1
_PTRACE_OF_NOBODY = 3
"""Values of kernel.yama.ptrace_scope (Linux, Documentation/admin-guide/LSM/Yama.rst)."""


def check_kineto_socket(facts: NodeFacts) -> CheckResult:
    """Whether the name that libkineto polls is perfd's to take."""
    socket = facts.kineto_socket

    def found(level: Level, what: str, mend: str = "") -> CheckResult:
        return CheckResult(check="kineto_socket", level=level, title="socket of Kineto", what=what, mend=mend)

    if not facts.captures_enabled or socket is None:
        what = "capture.kineto.enabled" if facts.captures_enabled else "capture.enabled"
        return found(Level.OK, f"not needed: {what} is off")
    if socket.problem:
        return found(Level.FAIL, f"{socket.place}: {socket.problem}", "Set capture.kineto.socket_directory.")
    if not socket.taken:
        return found(Level.OK, f"{socket.place} is free")
    if "perfd" in socket.owner:
        return found(Level.OK, f"{socket.place} is answered by {socket.owner}")
    if not socket.owner:
        return found(
            Level.WARN,
            f"{socket.place} is answered by a process that this user cannot see",
            "Run doctor as root to see whose it is; an agent of perfd is as it should be.",
        )
    return found(
        Level.FAIL,
        f"{socket.place} is taken by {socket.owner}",
        "Stop it (dynolog is one that takes it), or set capture.kineto.socket_directory and "
        "KINETO_IPC_SOCKET_DIR of the job.",
    )


def check_py_spy(facts: NodeFacts) -> CheckResult:
    """Whether the stacks of a job that hangs could be read."""
    spy = facts.py_spy

    def found(level: Level, what: str, mend: str = "") -> CheckResult:
        return CheckResult(
            check="py_spy", level=level, title="stacks of hanging jobs (py-spy)", what=what, mend=mend
        )

    if not facts.captures_enabled:
        return found(Level.OK, "switched off (capture.enabled)")
    if spy.path is None:
        return found(Level.WARN, "no py-spy", "pip install py-spy, or set capture.py_spy_path.")
    scope = spy.ptrace_scope or 0
    if scope >= _PTRACE_OF_NOBODY:
        return found(
            Level.WARN,
            f"{spy.path}, but kernel.yama.ptrace_scope is {scope}: nobody may look at processes",
            "Set it to 1 in /etc/sysctl.d and reboot; it cannot be lowered before.",
        )
    if not spy.may_trace and scope >= _PTRACE_OF_CHILDREN:
        return found(
            Level.WARN,
            f"{spy.path}, but kernel.yama.ptrace_scope is {scope} and this user has no CAP_SYS_PTRACE",
            "Run the agent as root or with CAP_SYS_PTRACE (systemd: AmbientCapabilities=CAP_SYS_PTRACE).",
        )
    whose = "any process" if spy.may_trace else "processes of this user"
    return found(Level.OK, f"{spy.path}, may look at {whose}")


def check_quota(facts: NodeFacts) -> CheckResult:
    """Whether captures of before leave room for another."""
    used, most = facts.captures_used_bytes, facts.captures_max_bytes
    title = "captures' quota"
    what = f"captures take {data_size(used)} of {data_size(most)}"
    if used < most:
        return CheckResult(check="quota", level=Level.OK, title=title, what=what)
    mend = f"Delete old ones in {facts.captures.path}, or raise capture.max_bytes."
    return CheckResult(
        check="quota", level=Level.FAIL, title=title, what=f"{what}: none can start", mend=mend
    )

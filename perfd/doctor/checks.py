"""Judgements over probed facts; each check is one pure function."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from perfd.doctor.capture_checks import check_kineto_socket, check_py_spy, check_quota
from perfd.doctor.check_result import CheckResult, Level
from perfd.doctor.nccl_checks import check_nccl_plugin, check_shared_memory
from perfd.doctor.node_facts import DirectoryFacts, NodeFacts
from perfd.formatting import data_size, duration

SCHEMA = "perfd.doctor/1"
_CLOCK_ERROR_S = 0.01
"""Traces of nodes are laid on one time line; a step's phases are tens of milliseconds."""
_PROTECTED_RATIO = 0.1
_LIBRARY = re.compile(r"loading shared libraries: ([^:\s]+)")
_PACKAGES: Mapping[str, str] = {
    "libdw.so.1": "libdw1 (in dnf: elfutils-libs)",
    "libssh.so": "libssh-4 (in dnf: libssh)",
}


def diagnose(facts: NodeFacts) -> list[CheckResult]:
    """The findings of all checks, in the order in which they are best mended."""
    return [check(facts) for check in CHECKS]


def to_json(findings: Sequence[CheckResult]) -> dict[str, Any]:
    """Schema perfd.doctor/1: the worst level, and the findings."""
    return {"schema": SCHEMA, "level": worst(findings), "findings": [asdict(finding) for finding in findings]}


def worst(findings: Sequence[CheckResult]) -> Level:
    """The worst level among findings."""
    order = (Level.OK, Level.WARN, Level.FAIL)
    return max((finding.level for finding in findings), key=order.index, default=Level.OK)


def check_versions(facts: NodeFacts) -> CheckResult:
    """Which perfd runs on which Python."""
    what = f"perfd {facts.perfd_version} on Python {facts.python_version}"
    return CheckResult(check="versions", level=Level.OK, title="versions", what=what)


def check_nvml(facts: NodeFacts) -> CheckResult:
    """Whether the driver answers."""
    nvml = facts.nvml

    def found(level: Level, what: str, mend: str = "") -> CheckResult:
        return CheckResult(check="nvml", level=level, title="GPUs (NVML)", what=what, mend=mend)

    if nvml.library_missing:
        return found(
            Level.WARN,
            "no NVML library: logs and the host are read, GPUs are not",
            "On a GPU node install the NVIDIA driver; in a container mount it (NVIDIA Container Toolkit).",
        )
    if nvml.error:
        mend = "Make nvidia-smi work first; after a driver update reload the modules or reboot."
        return found(Level.FAIL, f"NVML does not start: {nvml.error}", mend)
    if not nvml.gpus:
        mend = "In a container pass the GPUs through (--gpus all)."
        return found(Level.WARN, f"driver {nvml.driver} shows no GPU", mend)
    names = ", ".join(dict.fromkeys(gpu.name for gpu in nvml.gpus))
    return found(Level.OK, f"{len(nvml.gpus)} GPUs ({names}), driver {nvml.driver}")


def check_gpm(facts: NodeFacts) -> CheckResult:
    """Whether SM, tensor-core and memory activity can be read."""
    without = [str(gpu.index) for gpu in facts.nvml.gpus if gpu.gpm is False]
    if not facts.nvml.gpus:
        return CheckResult(check="gpm", level=Level.OK, title="activity of GPUs (GPM)", what="no GPU to ask")
    if without:
        return CheckResult(
            check="gpm",
            level=Level.WARN,
            title="activity of GPUs (GPM)",
            what=f"GPUs {', '.join(without)} have none: SM, tensor-core and DRAM activity stay unknown",
            mend="Needs Hopper or later and driver 520 or later; MFU from the job's log does not need it.",
        )
    return CheckResult(check="gpm", level=Level.OK, title="activity of GPUs (GPM)", what="on every GPU")


def check_nsys(facts: NodeFacts) -> CheckResult:
    """Whether captures can be taken and imported."""
    installation = facts.nsys.installation

    def found(level: Level, what: str, mend: str = "") -> CheckResult:
        return CheckResult(check="nsys", level=level, title="captures (nsys)", what=what, mend=mend)

    if not facts.captures_enabled:
        return found(Level.OK, "switched off (capture.enabled)")
    if installation is None:
        return found(
            Level.WARN,
            "no nsys: it captures nothing",
            "Install nsight-systems-cli, or set capture.nsys_path to an nsys that is elsewhere; jobs that are"
            " started with perfd run --kineto need none.",
        )
    where = f"{installation.nsys}, version {facts.nsys.version or 'unknown'}"
    if facts.nsys.version is None:
        return found(Level.FAIL, f"{installation.nsys} does not run", "Run it with --version and see why.")
    if installation.may_crash_jobs:
        used = "not used" if installation.only_found else "used because capture.nsys_path names it"
        what = f"{where}: its CUPTI (CUDA 13.0's first) has crashed jobs at their first capture: {used}"
        mend = "Install a newer nsight-systems-cli, or capture with Kineto (perfd run --kineto)."
        if installation.only_found:
            mend += " To use this one nevertheless, name it in capture.nsys_path."
        return found(Level.WARN, what, mend)
    if installation.importer_missing:
        what = f"{where}: QdstrmImporter is not at {installation.importer_expected}, so stop leaves no report"
        return found(Level.FAIL, what, installation.mend_importer)
    return found(Level.OK, where)


def check_importer(facts: NodeFacts) -> CheckResult:
    """Whether nsys can turn what it collects into a report; when it cannot, it returns 0 all the same."""
    title = "reports of nsys (QdstrmImporter)"
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
            mend=f"Install {package}." if package else "Reinstall nsight-systems.",
        )
    if facts.nsys.libdw is None:
        return CheckResult(
            check="importer",
            level=Level.WARN,
            title=title,
            what="libdw.so.1 is missing, without which the importers of 2025 leave only a .qdstrm",
            mend=f"Install {_PACKAGES['libdw.so.1']}.",
        )
    return CheckResult(check="importer", level=Level.OK, title=title, what="it runs")


def check_perf_events(facts: NodeFacts) -> CheckResult:
    """Only CPU sampling needs perf events, and perfd's captures leave it out."""
    level = facts.perf_event_paranoid
    what = "not readable" if level is None else f"perf_event_paranoid is {level}"
    return CheckResult(
        check="perf_event_paranoid",
        level=Level.OK,
        title="perf events",
        what=f"{what}; captures do not sample CPUs, so they work all the same",
        mend="" if level is None or level <= 2 else "For nsys with CPU sampling of your own: at most 2.",
    )


def check_processes(facts: NodeFacts) -> CheckResult:
    """Whether ranks can be found through the environment of the job's processes."""
    title = "environment of processes"
    total, unreadable = facts.processes.total, facts.processes.unreadable
    what = f"{unreadable} of {total} processes cannot be read"
    # A few protected system processes are normal, for root too; other users' jobs are many.
    if unreadable <= total * _PROTECTED_RATIO:
        return CheckResult(check="environ", level=Level.OK, title=title, what=what)
    return CheckResult(
        check="environ",
        level=Level.WARN,
        title=title,
        what=f"{what}; ranks of other users' jobs stay unknown",
        mend="Run the agent as the job's user, as root, or with CAP_SYS_PTRACE.",
    )


def check_spool(facts: NodeFacts) -> CheckResult:
    """Whether the agent can keep what the aggregator did not take yet."""
    return _directory("spool", "spool", facts.spool, facts.spool_max_bytes, "spool.directory")


def check_captures(facts: NodeFacts) -> CheckResult:
    """Whether captures have somewhere to go."""
    needed = facts.captures_min_free_bytes
    return _directory("captures", "captures' directory", facts.captures, needed, "capture.output_directory")


def check_clock(facts: NodeFacts) -> CheckResult:
    """Whether times of this node can be compared with those of others."""
    title = "clock"
    mend = "Run chrony or systemd-timesyncd on the host; traces of several nodes share one time line."
    if facts.clock is None:
        return CheckResult(
            check="clock", level=Level.WARN, title=title, what="the kernel does not report it", mend=mend
        )
    error = duration(facts.clock.max_error_s)
    if not facts.clock.synchronised:
        return CheckResult(check="clock", level=Level.WARN, title=title, what="not synchronized", mend=mend)
    if facts.clock.max_error_s > _CLOCK_ERROR_S:
        what = f"synchronized, off by up to {error}"
        return CheckResult(check="clock", level=Level.WARN, title=title, what=what, mend=mend)
    what = f"synchronized, off by at most {error}"
    return CheckResult(check="clock", level=Level.OK, title=title, what=what)


def check_kineto(facts: NodeFacts) -> CheckResult:
    """Whether Kineto and nsys would meet in one process: CUPTI has a single subscriber."""
    title = "Kineto"
    daemon = facts.kineto.get("KINETO_USE_DAEMON", "") not in ("", "0")
    if daemon and facts.captures_enabled and facts.nsys.installation is not None:
        return CheckResult(
            check="kineto",
            level=Level.WARN,
            title=title,
            what="KINETO_USE_DAEMON is set, and perfd run would start the job under nsys: one of them fails",
            mend="Unset it, or run with perfd run --no-nsys.",
        )
    variables = " ".join(f"{name}={value}" for name, value in sorted(facts.kineto.items()))
    return CheckResult(check="kineto", level=Level.OK, title=title, what=variables or "no variable is set")


def check_aggregator(facts: NodeFacts) -> CheckResult:
    """Whether batches can leave this node."""
    aggregator = facts.aggregator
    title = "aggregator"
    if not aggregator.error:
        what = f"{aggregator.address} answers"
        return CheckResult(check="aggregator", level=Level.OK, title=title, what=what)
    if not aggregator.configured:
        what = f"none at {aggregator.address}; perfd run brings its own"
        return CheckResult(check="aggregator", level=Level.OK, title=title, what=what)
    return CheckResult(
        check="aggregator",
        level=Level.FAIL,
        title=title,
        what=f"{aggregator.address} cannot be reached: {aggregator.error}",
        mend="Start perfd aggregator there, or correct uplink.address; batches wait in the spool meanwhile.",
    )


def check_promtool(facts: NodeFacts) -> CheckResult:
    """Whether there is a second opinion on rules files."""
    what = str(facts.promtool) if facts.promtool else "not here; perfd rules check and test do without it"
    return CheckResult(check="promtool", level=Level.OK, title="promtool (optional)", what=what)


CHECKS: Sequence[Callable[[NodeFacts], CheckResult]] = (
    check_versions,
    check_nvml,
    check_gpm,
    check_processes,
    check_nsys,
    check_importer,
    check_kineto,
    check_kineto_socket,
    check_py_spy,
    check_perf_events,
    check_nccl_plugin,
    check_shared_memory,
    check_spool,
    check_captures,
    check_quota,
    check_clock,
    check_aggregator,
    check_promtool,
)
"""In the order of the report; a new check is a function and a line here."""


def _directory(check: str, title: str, facts: DirectoryFacts, needed_bytes: int, option: str) -> CheckResult:
    free = f"{data_size(facts.free_bytes)} free"
    if facts.problem:
        what = f"{facts.path} cannot be written: {facts.problem}"
        mend = f"Set {option} to a directory that this user can write."
        return CheckResult(check=check, level=Level.FAIL, title=title, what=what, mend=mend)
    if facts.free_bytes < needed_bytes:
        return CheckResult(
            check=check,
            level=Level.WARN,
            title=title,
            what=f"{facts.path}: {free}, {data_size(needed_bytes)} wanted",
            mend=f"Free some space, or set {option} to another disk.",
        )
    return CheckResult(check=check, level=Level.OK, title=title, what=f"{facts.path}, {free}")

"""Checks of probed facts; each is one pure function."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from perfd.doctor.capture_checks import (
    check_importer,
    check_jax,
    check_kineto,
    check_kineto_socket,
    check_nsys,
    check_perf_events,
    check_py_spy,
    check_quota,
)
from perfd.doctor.check_result import CheckResult, Level
from perfd.doctor.nccl_checks import check_nccl_plugin, check_nccl_settings, check_shared_memory
from perfd.doctor.node_facts import DirectoryFacts, HistoryServerFacts, NodeFacts, StorageFacts
from perfd.formatting import data_size, duration
from perfd.net import PUBLISHED_HEADER_BYTES

SCHEMA = "perfd.doctor/2"
_MAX_CLOCK_ERROR_S = 0.01
"""Traces of several nodes share one time line, and phases of a step take tens of milliseconds."""
_PROTECTED_RATIO = 0.1
"""Share of processes that may be unreadable: a few protected system processes are normal. Chosen, not
measured."""


def diagnose(facts: NodeFacts) -> list[CheckResult]:
    """The results of all checks, in the order in which to fix them."""
    return [check(facts) for check in CHECKS]


def to_json(findings: Sequence[CheckResult]) -> dict[str, Any]:
    """Schema perfd.doctor/2: the worst level, and all results."""
    return {"schema": SCHEMA, "level": worst(findings), "findings": [asdict(finding) for finding in findings]}


def worst(findings: Sequence[CheckResult]) -> Level:
    """The worst level of the results."""
    order = (Level.OK, Level.WARN, Level.FAIL)
    return max((finding.level for finding in findings), key=order.index, default=Level.OK)


def check_versions(facts: NodeFacts) -> CheckResult:
    """The versions of perfd and Python."""
    what = f"perfd {facts.perfd_version} on Python {facts.python_version}"
    return CheckResult(check="versions", level=Level.OK, title="versions", what=what)


def check_nvml(facts: NodeFacts) -> CheckResult:
    """Whether the NVIDIA driver responds."""
    nvml = facts.nvml

    def found(level: Level, what: str, fix: str = "") -> CheckResult:
        return CheckResult(check="nvml", level=level, title="GPUs (NVML)", what=what, fix=fix)

    if nvml.library_missing:
        return found(
            Level.WARN,
            "NVML library not found: GPU metrics unavailable, logs and host metrics work",
            "On a GPU node, install the NVIDIA driver; in a container, mount it (NVIDIA Container Toolkit).",
        )
    if nvml.error:
        fix = "Check nvidia-smi first; after a driver update, reload the kernel modules or reboot."
        return found(Level.FAIL, f"NVML failed to start: {nvml.error}", fix)
    if not nvml.gpus:
        fix = "In a container, pass the GPUs through (--gpus all)."
        return found(Level.WARN, f"driver {nvml.driver} reports no GPU", fix)
    names = ", ".join(dict.fromkeys(gpu.name for gpu in nvml.gpus))
    return found(Level.OK, f"{len(nvml.gpus)} GPUs ({names}), driver {nvml.driver}")


def check_gpm(facts: NodeFacts) -> CheckResult:
    """Whether SM, tensor-core and memory activity can be read."""
    without = [str(gpu.index) for gpu in facts.nvml.gpus if gpu.gpm is False]
    if not facts.nvml.gpus:
        return CheckResult(check="gpm", level=Level.OK, title="GPU activity (GPM)", what="no GPU")
    if without:
        return CheckResult(
            check="gpm",
            level=Level.WARN,
            title="GPU activity (GPM)",
            what=f"GPUs {', '.join(without)} lack GPM: SM, tensor core and DRAM activity unavailable",
            fix="Needs Hopper or later and driver 520 or later; MFU from the job's log does not need GPM.",
        )
    return CheckResult(check="gpm", level=Level.OK, title="GPU activity (GPM)", what="available on all GPUs")


def check_processes(facts: NodeFacts) -> CheckResult:
    """Whether ranks can be found by the environment of the job's processes."""
    title = "process environments"
    total, unreadable = facts.processes.total, facts.processes.unreadable
    what = f"{unreadable} of {total} processes are unreadable"
    if unreadable <= total * _PROTECTED_RATIO:
        return CheckResult(check="environ", level=Level.OK, title=title, what=what)
    return CheckResult(
        check="environ",
        level=Level.WARN,
        title=title,
        what=f"{what}: ranks of other users' jobs unknown",
        fix="Run the agent as the job's user, as root, or with CAP_SYS_PTRACE.",
    )


def check_spool(facts: NodeFacts) -> CheckResult:
    """Whether the agent can store batches until the aggregator has them."""
    return _directory("spool", "spool", facts.spool, facts.spool_max_bytes, "spool.directory")


def check_captures(facts: NodeFacts) -> CheckResult:
    """Whether captures can be written."""
    needed = facts.captures_min_free_bytes
    return _directory("captures", "capture directory", facts.captures, needed, "capture.output_directory")


def check_clock(facts: NodeFacts) -> CheckResult:
    """Whether times of this node are comparable with those of other nodes."""
    title = "clock"
    fix = "Run chrony or systemd-timesyncd on the host; traces of several nodes share one time line."
    if facts.clock is None:
        return CheckResult(
            check="clock", level=Level.WARN, title=title, what="the kernel does not report it", fix=fix
        )
    error = duration(facts.clock.max_error_s)
    if not facts.clock.synchronized:
        return CheckResult(check="clock", level=Level.WARN, title=title, what="not synchronized", fix=fix)
    if facts.clock.max_error_s > _MAX_CLOCK_ERROR_S:
        what = f"synchronized, off by up to {error}"
        return CheckResult(check="clock", level=Level.WARN, title=title, what=what, fix=fix)
    what = f"synchronized, off by at most {error}"
    return CheckResult(check="clock", level=Level.OK, title=title, what=what)


def check_aggregator(facts: NodeFacts) -> CheckResult:
    """Whether the aggregator is reachable."""
    aggregator = facts.aggregator
    title = "aggregator"
    if not aggregator.error:
        what = f"{aggregator.address} is reachable"
        return CheckResult(check="aggregator", level=Level.OK, title=title, what=what)
    if not aggregator.configured:
        what = f"none at {aggregator.address}; perfd run starts its own"
        return CheckResult(check="aggregator", level=Level.OK, title=title, what=what)
    return CheckResult(
        check="aggregator",
        level=Level.FAIL,
        title=title,
        what=f"{aggregator.address} cannot be reached: {aggregator.error}",
        fix="Start perfd aggregator there, or fix uplink.address; meanwhile, batches stay in the spool.",
    )


def check_history(facts: NodeFacts) -> CheckResult:
    """What survives a kill of the aggregator."""
    history, title = facts.history, "history"
    if history is None:
        what = "not checked without --aggregator-config; perfd run keeps its own"
        return CheckResult(check="history", level=Level.OK, title=title, what=what)
    if history.server is not None:
        return _history_server(history.server)
    if history.directory is None:
        return CheckResult(
            check="history",
            level=Level.WARN,
            title=title,
            what="off: a kill or restart of the aggregator loses all steps, phases, events, alerts, captures "
            "and summaries so far, because agents delete what it has acknowledged",
            fix="Set history.path or history.url in the aggregator's configuration; then it acknowledges "
            "after the commit.",
        )
    result = _directory("history", title, history.directory, history.max_bytes, "history.path")
    if not history.repair or result.level is not Level.OK:
        return result
    return CheckResult(
        check="history",
        level=Level.WARN,
        title=title,
        what=f"{result.what}; the file was damaged and {history.repair}",
        fix="Check the disk and the memory of this machine; then delete the files named .damaged beside it.",
    )


def check_uploads(facts: NodeFacts) -> CheckResult:
    """Whether captures of this node can be stored in object storage."""
    return _storage("uploads", "uploads of captures", facts.uploads, "capture.object_storage")


def check_reports(facts: NodeFacts) -> CheckResult:
    """Whether the aggregator can read captures in object storage, and store their reports."""
    return _storage("reports", "reports in object storage", facts.reports, "object_storage")


def check_gateway(facts: NodeFacts) -> CheckResult:
    """Whether the gateway can publish to NATS."""
    title, gateway = "gateway", facts.gateway
    if gateway is None:
        what = "not checked without --gateway-config"
        return CheckResult(check="gateway", level=Level.OK, title=title, what=what)
    if gateway.error:
        return CheckResult(
            check="gateway",
            level=Level.FAIL,
            title=title,
            what=f"{gateway.servers} cannot be used: {gateway.error}",
            fix="Start the servers, or correct nats in the gateway's configuration.",
        )
    if gateway.max_payload_bytes < gateway.needed_bytes + PUBLISHED_HEADER_BYTES:
        return CheckResult(
            check="gateway",
            level=Level.FAIL,
            title=title,
            what=f"{gateway.servers} take messages of at most {data_size(gateway.max_payload_bytes)}",
            fix=f"Set max_payload of the servers to {gateway.needed_bytes + PUBLISHED_HEADER_BYTES}.",
        )
    what = f"{gateway.servers} can be reached"
    return CheckResult(check="gateway", level=Level.OK, title=title, what=what)


def check_promtool(facts: NodeFacts) -> CheckResult:
    """Whether promtool is available to check rules files, too."""
    what = str(facts.promtool) if facts.promtool else "not found; perfd rules check and test do not need it"
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
    check_jax,
    check_py_spy,
    check_perf_events,
    check_nccl_plugin,
    check_shared_memory,
    check_nccl_settings,
    check_spool,
    check_captures,
    check_quota,
    check_clock,
    check_aggregator,
    check_history,
    check_gateway,
    check_uploads,
    check_reports,
    check_promtool,
)
"""In the order of the report."""


def _history_server(server: HistoryServerFacts) -> CheckResult:
    if server.error:
        return CheckResult(
            check="history",
            level=Level.FAIL,
            title="history",
            what=f"{server.place} cannot be used: {server.error}" if server.place else server.error,
            fix="Correct history.url or the database; until then the aggregator does not start.",
        )
    tables = "no tables yet" if server.schema is None else f"schema {server.schema}"
    encryption = "TLS" if server.encrypted else "no TLS"
    return CheckResult(
        check="history",
        level=Level.OK,
        title="history",
        what=f"{server.place}, PostgreSQL {server.version}, {tables}, {encryption}",
    )


def _storage(check: str, title: str, facts: StorageFacts | None, option: str) -> CheckResult:
    if facts is None:
        return CheckResult(check=check, level=Level.OK, title=title, what=f"{option} is not configured")
    if not facts.problem:
        what = f"{facts.url} was stored"
        return CheckResult(check=check, level=Level.OK, title=title, what=what)
    return CheckResult(
        check=check,
        level=Level.FAIL,
        title=title,
        what=facts.problem.rstrip("."),
        fix=(
            f"Correct {option}, or the storage that it names (docs/object-storage.md). Until then, captures"
            " stay on their nodes."
        ),
    )


def _directory(check: str, title: str, facts: DirectoryFacts, needed_bytes: int, option: str) -> CheckResult:
    free = f"{data_size(facts.free_bytes)} free"
    if facts.problem:
        what = f"{facts.path} cannot be written: {facts.problem}"
        fix = f"Set {option} to a directory that this user can write."
        return CheckResult(check=check, level=Level.FAIL, title=title, what=what, fix=fix)
    if facts.free_bytes < needed_bytes:
        return CheckResult(
            check=check,
            level=Level.WARN,
            title=title,
            what=f"{facts.path}: {free}, {data_size(needed_bytes)} needed",
            fix=f"Free some space, or set {option} to another disk.",
        )
    return CheckResult(check=check, level=Level.OK, title=title, what=f"{facts.path}, {free}")

"""Checks of probed facts; each is one pure function."""

from __future__ import annotations

from collections.abc import Sequence
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
from perfd.doctor.check_result import Check, CheckResult, Level, check, fail, ok, warn
from perfd.doctor.nccl_checks import check_nccl_plugin, check_nccl_settings, check_shared_memory
from perfd.doctor.node_facts import DirectoryFacts, HistoryServerFacts, NodeFacts, StorageFacts
from perfd.doctor.stream_checks import check_stream
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


@check("versions", "versions")
def check_versions(facts: NodeFacts) -> CheckResult:
    """The versions of perfd and Python."""
    return ok(f"perfd {facts.perfd_version} on Python {facts.python_version}")


@check("nvml", "GPUs (NVML)")
def check_nvml(facts: NodeFacts) -> CheckResult:
    """Whether the NVIDIA driver responds."""
    nvml = facts.nvml
    if nvml.library_missing:
        return warn(
            "NVML library not found: GPU metrics unavailable, logs and host metrics work",
            "On a GPU node, install the NVIDIA driver; in a container, mount it (NVIDIA Container Toolkit).",
        )
    if nvml.error:
        fix = "Check nvidia-smi first; after a driver update, reload the kernel modules or reboot."
        return fail(f"NVML failed to start: {nvml.error}", fix)
    if not nvml.gpus:
        fix = "In a container, pass the GPUs through (--gpus all)."
        return warn(f"driver {nvml.driver} reports no GPU", fix)
    names = ", ".join(dict.fromkeys(gpu.name for gpu in nvml.gpus))
    return ok(f"{len(nvml.gpus)} GPUs ({names}), driver {nvml.driver}")


@check("gpm", "GPU activity (GPM)")
def check_gpm(facts: NodeFacts) -> CheckResult:
    """Whether SM, tensor-core and memory activity can be read."""
    without = [str(gpu.index) for gpu in facts.nvml.gpus if gpu.gpm is False]
    if not facts.nvml.gpus:
        return ok("no GPU")
    if without:
        return warn(
            f"GPUs {', '.join(without)} lack GPM: SM, tensor core and DRAM activity unavailable",
            "Needs Hopper or later and driver 520 or later; MFU from the job's log does not need GPM.",
        )
    return ok("available on all GPUs")


@check("environ", "process environments")
def check_processes(facts: NodeFacts) -> CheckResult:
    """Whether ranks can be found by the environment of the job's processes."""
    total, unreadable = facts.processes.total, facts.processes.unreadable
    what = f"{unreadable} of {total} processes are unreadable"
    if unreadable <= total * _PROTECTED_RATIO:
        return ok(what)
    return warn(
        f"{what}: ranks of other users' jobs unknown",
        "Run the agent as the job's user, as root, or with CAP_SYS_PTRACE.",
    )


@check("spool", "spool")
def check_spool(facts: NodeFacts) -> CheckResult:
    """Whether the agent can store batches until the aggregator has them."""
    return _directory(facts.spool, facts.spool_max_bytes, "spool.directory")


@check("captures", "capture directory")
def check_captures(facts: NodeFacts) -> CheckResult:
    """Whether captures can be written."""
    needed = facts.captures_min_free_bytes
    return _directory(facts.captures, needed, "capture.output_directory")


@check("clock", "clock")
def check_clock(facts: NodeFacts) -> CheckResult:
    """Whether times of this node are comparable with those of other nodes."""
    fix = "Run chrony or systemd-timesyncd on the host; traces of several nodes share one time line."
    if facts.clock is None:
        return warn("the kernel does not report it", fix)
    error = duration(facts.clock.max_error_s)
    if not facts.clock.synchronized:
        return warn("not synchronized", fix)
    if facts.clock.max_error_s > _MAX_CLOCK_ERROR_S:
        return warn(f"synchronized, off by up to {error}", fix)
    return ok(f"synchronized, off by at most {error}")


@check("aggregator", "aggregator")
def check_aggregator(facts: NodeFacts) -> CheckResult:
    """Whether the aggregator is reachable."""
    aggregator = facts.aggregator
    if not aggregator.error:
        return ok(f"{aggregator.address} is reachable")
    if not aggregator.configured:
        return ok(f"none at {aggregator.address}; perfd run starts its own")
    return fail(
        f"{aggregator.address} cannot be reached: {aggregator.error}",
        "Start perfd aggregator there, or fix uplink.address; meanwhile, batches stay in the spool.",
    )


@check("history", "history")
def check_history(facts: NodeFacts) -> CheckResult:
    """What survives a kill of the aggregator."""
    history = facts.history
    if history is None:
        return ok("not checked without --aggregator-config; perfd run keeps its own")
    if history.server is not None:
        return _history_server(history.server)
    if history.directory is None:
        return warn(
            "off: a kill or restart of the aggregator loses all steps, phases, events, alerts, captures "
            "and summaries so far, because agents delete what it has acknowledged",
            "Set history.path or history.url in the aggregator's configuration; then it acknowledges "
            "after the commit.",
        )
    result = _directory(history.directory, history.max_bytes, "history.path")
    if not history.repair or result.level is not Level.OK:
        return result
    return warn(
        f"{result.what}; the file was damaged and {history.repair}",
        "Check the disk and the memory of this machine; then delete the files named .damaged beside it.",
    )


@check("uploads", "uploads of captures")
def check_uploads(facts: NodeFacts) -> CheckResult:
    """Whether captures of this node can be stored in object storage."""
    return _storage(facts.uploads, "capture.object_storage")


@check("reports", "reports in object storage")
def check_reports(facts: NodeFacts) -> CheckResult:
    """Whether the aggregator can read captures in object storage, and store their reports."""
    return _storage(facts.reports, "object_storage")


@check("gateway", "gateway")
def check_gateway(facts: NodeFacts) -> CheckResult:
    """Whether the gateway can publish to NATS."""
    gateway = facts.gateway
    if gateway is None:
        return ok("not checked without --gateway-config")
    if gateway.error:
        return fail(
            f"{gateway.servers} cannot be used: {gateway.error}",
            "Start the servers, or correct nats in the gateway's configuration.",
        )
    if gateway.max_payload_bytes < gateway.needed_bytes + PUBLISHED_HEADER_BYTES:
        return fail(
            f"{gateway.servers} take messages of at most {data_size(gateway.max_payload_bytes)}",
            f"Set max_payload of the servers to {gateway.needed_bytes + PUBLISHED_HEADER_BYTES}.",
        )
    return ok(f"{gateway.servers} can be reached")


@check("promtool", "promtool (optional)")
def check_promtool(facts: NodeFacts) -> CheckResult:
    """Whether promtool is available to check rules files, too."""
    what = str(facts.promtool) if facts.promtool else "not found; perfd rules check and test do not need it"
    return ok(what)


CHECKS: Sequence[Check] = (
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
    check_stream,
    check_uploads,
    check_reports,
    check_promtool,
)
"""In the order of the report."""


def _history_server(server: HistoryServerFacts) -> CheckResult:
    if server.error:
        return fail(
            f"{server.place} cannot be used: {server.error}" if server.place else server.error,
            "Correct history.url or the database; until then the aggregator does not start.",
        )
    tables = "no tables yet" if server.schema is None else f"schema {server.schema}"
    encryption = "TLS" if server.encrypted else "no TLS"
    return ok(f"{server.place}, PostgreSQL {server.version}, {tables}, {encryption}")


def _storage(facts: StorageFacts | None, option: str) -> CheckResult:
    if facts is None:
        return ok(f"{option} is not configured")
    if not facts.problem:
        return ok(f"{facts.url} was stored")
    return fail(
        facts.problem.rstrip("."),
        f"Correct {option}, or the storage that it names (docs/object-storage.md). Until then, captures"
        " stay on their nodes.",
    )


def _directory(facts: DirectoryFacts, needed_bytes: int, option: str) -> CheckResult:
    free = f"{data_size(facts.free_bytes)} free"
    if facts.problem:
        what = f"{facts.path} cannot be written: {facts.problem}"
        fix = f"Set {option} to a directory that this user can write."
        return fail(what, fix)
    if facts.free_bytes < needed_bytes:
        return warn(
            f"{facts.path}: {free}, {data_size(needed_bytes)} needed",
            f"Free some space, or set {option} to another disk.",
        )
    return ok(f"{facts.path}, {free}")

"""The report of a serving engine or of its benchmark."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from perfd.analysis.findings import Finding
from perfd.analysis.serving import Distribution, Latency, ServerDocument, TheoryComparison
from perfd.formatting import UNKNOWN, count, duration, percent
from perfd.report.report_model import Report, ReportFinding, ReportMetric, ReportTable

_LATENCIES = (
    ("TTFT", Latency.TTFT),
    ("Between tokens", Latency.ITL),
    ("End to end", Latency.E2E),
    ("Queue", Latency.QUEUE),
)

_NOT_KNOWN = frozenset({UNKNOWN, "-"})


def report_of_servers(
    servers: Sequence[ServerDocument], *, kind: str, more: Sequence[ReportMetric] = ()
) -> Report:
    """What servers measured, what their hardware allows, and what to change; `kind` names the input."""
    first, findings = servers[0], [finding for server in servers for finding in server.findings]
    now = first.measured.now
    engine = " ".join(filter(None, [now.engine.value, now.version, now.model]))
    return Report(
        title=f"{kind} {first.source}" if len(servers) == 1 else f"{len(servers)} servers",
        subtitle=engine,
        headline=_headline(servers, findings),
        summary=[sentence for finding in findings[:1] for sentence in finding.evidence],
        metrics=[
            *(one for one in more if one.value not in _NOT_KNOWN),
            *(metric for server in servers for metric in _metrics(server)),
        ],
        findings=[ReportFinding.of(finding) for finding in findings],
        tables=[_latencies(server) for server in servers],
        notes=[note for server in servers for note in server.measured.notes],
    )


def _headline(servers: Sequence[ServerDocument], findings: Sequence[Finding]) -> str:
    if findings:
        return f"{findings[0].headline}."
    if any(server.comparison is None for server in servers):
        return "No findings; without model and GPU, its speed cannot be compared with the hardware's."
    return "perfd finds nothing that slows it down."


def _metrics(server: ServerDocument) -> Iterator[ReportMetric]:
    measured, now = server.measured, server.measured.now
    values = (
        ("Running requests", count(now.running_requests)),
        ("Limit on running requests", count(now.max_running_requests)),
        ("Queued requests", count(now.queued_requests)),
        ("KV cache used", percent(now.kv_cache_used_ratio)),
        ("Prefix cache hits", percent(measured.prefix_hit_ratio)),
        ("Generated tokens/s", count(measured.generation_tokens_per_s)),
        ("Prompt tokens/s", count(measured.prompt_tokens_per_s)),
    )
    for name, value in values:
        if value not in _NOT_KNOWN:
            yield ReportMetric(name=name, value=value, source=server.source)
    if server.comparison is not None:
        yield from _theory(server.comparison)


def _theory(comparison: TheoryComparison) -> Iterator[ReportMetric]:
    source = f"perfd's model of {comparison.theory.layout.gpus} x {comparison.theory.gpu.name}"
    step = None if comparison.step is None else comparison.step.total_s
    values = (
        ("Least TPOT of one sequence", duration(comparison.tpot_floor_s)),
        ("Least TPOT of the running batch", duration(step)),
        ("Least TTFT of the mean prompt", duration(comparison.ttft_floor_s)),
        ("Critical batch", f"{comparison.theory.critical_batch:.0f}"),
        ("Memory bandwidth used", percent(comparison.mbu_ratio)),
    )
    yield from (
        ReportMetric(name=name, value=value, source=source)
        for name, value in values
        if value not in _NOT_KNOWN
    )


def _latencies(server: ServerDocument) -> ReportTable:
    measured = server.measured
    found: list[tuple[str, Distribution | None]] = [
        (name, measured.latencies.get(which)) for name, which in _LATENCIES
    ]
    found.insert(1, ("TPOT", measured.tpot))
    return ReportTable(
        title="Latencies",
        source=server.source,
        columns=("latency", "p50", "p90", "p99", "mean"),
        rows=[
            (name, *map(duration, (one.p50, one.p90, one.p99, one.mean)))
            for name, one in found
            if one is not None and one != Distribution()
        ],
    )

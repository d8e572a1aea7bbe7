"""Results of `bench_serving`, SGLang's and vLLM's: the text on the terminal, and lines of JSONL."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from perfd.analysis.serving.histograms import Distribution
from perfd_collectors.serving.text import ANSI

_START = re.compile(r"=+ (?:Serving Benchmark|.*Benchmark) Result =+")
_ROW = re.compile(r"(?P<label>[^:]+):\s+(?P<value>\S.*?)\s*$")
_LATENCY = re.compile(
    r"(?P<statistic>Mean|Median|P\d+(?:\.\d+)?|Max|Std) (?P<name>TTFT|TPOT|ITL|E2EL|E2E Latency) \(ms\)"
)
_NAMES = {"TTFT": "ttft", "TPOT": "tpot", "ITL": "itl", "E2EL": "e2e", "E2E Latency": "e2e"}
_LABELS = {
    "Backend": "backend",
    "Traffic request rate": "request_rate",
    "Request rate configured (RPS)": "request_rate",
    "Max request concurrency": "max_concurrency",
    # Spelled so up to 0.4.0.
    "Max reqeuest concurrency": "max_concurrency",
    "Maximum request concurrency": "max_concurrency",
    "Successful requests": "completed",
    "Failed requests": "failed",
    "Benchmark duration (s)": "duration",
    "Total input tokens": "total_input_tokens",
    "Total generated tokens": "total_output_tokens",
    "Request throughput (req/s)": "request_throughput",
    "Input token throughput (tok/s)": "input_throughput",
    "Output token throughput (tok/s)": "output_throughput",
    "Total token throughput (tok/s)": "total_throughput",
    "Total Token throughput (tok/s)": "total_throughput",
    "Concurrency": "concurrency",
    "Accept length": "accept_length",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchResult:
    """One run of the benchmark; None is what it does not say."""

    backend: str | None = None
    dataset: str | None = None
    request_rate_per_s: float | None = None
    """Infinite when all requests were sent at once."""
    max_concurrency: float | None = None
    completed_requests: float | None = None
    duration_s: float | None = None
    input_tokens: float | None = None
    output_tokens: float | None = None
    requests_per_s: float | None = None
    input_tokens_per_s: float | None = None
    output_tokens_per_s: float | None = None
    concurrency: float | None = None
    accept_length: float | None = None
    latencies: Mapping[str, Distribution] = field(default_factory=dict)
    """`ttft`, `tpot`, `itl`, `e2e`, in seconds."""

    @property
    def mean_prompt_tokens(self) -> float | None:
        """Of a request."""
        return _ratio(self.input_tokens, self.completed_requests)

    @property
    def mean_output_tokens(self) -> float | None:
        """Of a request."""
        return _ratio(self.output_tokens, self.completed_requests)


def read_results(text: str) -> Sequence[BenchResult]:
    """All results of a file, of either form; empty when there is none. A line that was cut is left out."""
    results = []
    for line in text.splitlines():
        if line.lstrip().startswith("{"):
            said = _object(line)
            if said is not None:
                results.append(_result(said))
    return results or _texts(text)


def _object(line: str) -> Mapping[str, Any] | None:
    try:
        said = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return said if isinstance(said, dict) and ("completed" in said or "duration" in said) else None


def _texts(text: str) -> list[BenchResult]:
    blocks: list[dict[str, Any]] = []
    for line in ANSI.sub("", text).splitlines():
        if _START.search(line):
            blocks.append({})
            continue
        row = _ROW.match(line.strip())
        if row is None or not blocks:
            continue
        latency, value = _LATENCY.match(row["label"] + ":"), row["value"]
        if latency is not None:
            key = f"{latency['statistic'].lower()}_{_NAMES[latency['name']]}_ms"
        elif row["label"] in _LABELS:
            key = _LABELS[row["label"]]
        else:
            continue
        blocks[-1].setdefault(key, value)
    return [_result(block) for block in blocks if block]


def _result(said: Mapping[str, Any]) -> BenchResult:
    backend, dataset = said.get("backend"), said.get("dataset_name")
    return BenchResult(
        backend=backend if isinstance(backend, str) else None,
        dataset=dataset if isinstance(dataset, str) else None,
        request_rate_per_s=_number(said, "request_rate", infinite=True),
        max_concurrency=_number(said, "max_concurrency"),
        completed_requests=_number(said, "completed"),
        duration_s=_number(said, "duration"),
        input_tokens=_number(said, "total_input_tokens"),
        output_tokens=_number(said, "total_output_tokens"),
        requests_per_s=_number(said, "request_throughput"),
        input_tokens_per_s=_number(said, "input_throughput"),
        output_tokens_per_s=_number(said, "output_throughput"),
        concurrency=_number(said, "concurrency"),
        accept_length=_number(said, "accept_length"),
        latencies={
            name: found
            for name in ("ttft", "tpot", "itl", "e2e")
            if (found := _distribution(said, name)) != Distribution()
        },
    )


def _distribution(said: Mapping[str, Any], name: str) -> Distribution:
    def seconds(*statistics: str) -> float | None:
        for statistic in statistics:
            # SGLang's file says `e2e_latency`, vLLM's `e2el`.
            for spelling in (name, *(("e2e_latency", "e2el") if name == "e2e" else ())):
                value = _number(said, f"{statistic}_{spelling}_ms")
                if value is not None:
                    return value / 1000
        return None

    return Distribution(
        p50=seconds("median", "p50"), p90=seconds("p90"), p99=seconds("p99"), mean=seconds("mean")
    )


def _number(said: Mapping[str, Any], key: str, *, infinite: bool = False) -> float | None:
    value = said.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return None if math.isnan(number) or (math.isinf(number) and not infinite) else number


def _ratio(part: float | None, whole: float | None) -> float | None:
    return part / whole if part is not None and whole else None

"""Parses results of SGLang's and vLLM's `bench_serving`: terminal text and JSON lines."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from perfd.analysis.serving import Distribution
from perfd_collectors.serving.log_text import ANSI

_START = re.compile(r"= [^=]{0,80}Benchmark Result =")
_ROW = re.compile(r"(?P<label>[^:]+):\s+(?P<value>\S(?:.*\S)?)\s*$")
_LATENCY = re.compile(
    r"(?P<statistic>Mean|Median|P\d+(?:\.\d+)?|Max|Std) (?P<name>TTFT|TPOT|ITL|E2EL|E2E Latency) \(ms\)"
)
_NAMES = {"TTFT": "ttft", "TPOT": "tpot", "ITL": "itl", "E2EL": "e2e", "E2E Latency": "e2e"}
_LABELS = {
    "Backend": "backend",
    "Traffic request rate": "request_rate",
    "Request rate configured (RPS)": "request_rate",
    "Max request concurrency": "max_concurrency",
    # Spelled this way up to 0.4.0.
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
    "Acceptance length": "accept_length",
}
_LATENCIES = ("ttft", "tpot", "itl", "e2e")
_MOST = 1e100
"""Larger numbers are corrupt. Products of two smaller ones stay finite."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchResult:
    """One benchmark run; values that it does not report are None."""

    backend: str | None = None
    dataset: str | None = None
    request_rate_per_s: float | None = None
    """Infinite when all requests were sent at once."""
    max_concurrency: float | None = None
    completed_requests: float | None = None
    failed_requests: float | None = None
    """Counted by vLLM; SGLang only leaves them out of `completed`."""
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
        """Prompt tokens per completed request."""
        return _ratio(self.input_tokens, self.completed_requests)

    @property
    def mean_output_tokens(self) -> float | None:
        """Output tokens per completed request."""
        return _ratio(self.output_tokens, self.completed_requests)


def read_results(text: str) -> Sequence[BenchResult]:
    """All results in a file of either form; empty without any. Truncated lines are skipped."""
    lines = [line for line in text.splitlines() if line.lstrip().startswith("{")]
    # A pretty-printed file is one document over many lines.
    whole = _objects(text) if text.lstrip().startswith(("{", "[")) else []
    results = whole or [one for line in lines for one in _objects(line)]
    return [_result(one) for one in results] or _texts(text)


def _objects(text: str) -> list[Mapping[str, Any]]:
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return []
    found = document if isinstance(document, list) else [document]
    return [one for one in found if isinstance(one, dict) and {"completed", "duration"} & set(one)]


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


def _result(values: Mapping[str, Any]) -> BenchResult:
    # vLLM 0.10 has `endpoint_type` instead.
    backend, dataset = values.get("backend", values.get("endpoint_type")), values.get("dataset_name")
    duration, prompt = _number(values, "duration"), _number(values, "total_input_tokens")
    output, completed = _number(values, "total_output_tokens"), _number(values, "completed")
    requests_per_s = _first(values, "request_throughput", otherwise=_ratio(completed, duration))
    latencies = {
        name: found for name in _LATENCIES if (found := _distribution(values, name)) != Distribution()
    }
    return BenchResult(
        backend=backend if isinstance(backend, str) else None,
        dataset=dataset if isinstance(dataset, str) else None,
        request_rate_per_s=_number(values, "request_rate", infinite=True),
        max_concurrency=_number(values, "max_concurrency"),
        completed_requests=completed,
        failed_requests=_number(values, "failed"),
        duration_s=duration,
        input_tokens=prompt,
        output_tokens=output,
        requests_per_s=requests_per_s,
        input_tokens_per_s=_first(values, "input_throughput", otherwise=_ratio(prompt, duration)),
        output_tokens_per_s=_first(values, "output_throughput", otherwise=_ratio(output, duration)),
        concurrency=_first(
            values, "concurrency", otherwise=_in_flight(latencies, requests_per_s, output, completed)
        ),
        accept_length=_first(values, "accept_length", "spec_decode_acceptance_length"),
        latencies=latencies,
    )


def _in_flight(
    latencies: Mapping[str, Distribution],
    requests_per_s: float | None,
    output: float | None,
    completed: float | None,
) -> float | None:
    """Concurrency by Little's law, if it is not reported: request rate times mean latency."""
    latency_s = (latencies.get("e2e") or Distribution()).mean
    ttft, tpot = (latencies.get(name, Distribution()).mean for name in ("ttft", "tpot"))
    length = _ratio(output, completed)
    if latency_s is None and ttft is not None and tpot is not None and length is not None:
        latency_s = ttft + tpot * max(0.0, length - 1)
    return None if latency_s is None or requests_per_s is None else latency_s * requests_per_s


def _first(values: Mapping[str, Any], *keys: str, otherwise: float | None = None) -> float | None:
    return next((value for key in keys if (value := _number(values, key)) is not None), otherwise)


def _distribution(values: Mapping[str, Any], name: str) -> Distribution:
    def seconds(*statistics: str) -> float | None:
        for statistic in statistics:
            # `e2e_latency` in SGLang's file, `e2el` in vLLM's.
            for spelling in (name, *(("e2e_latency", "e2el") if name == "e2e" else ())):
                value = _number(values, f"{statistic}_{spelling}_ms")
                if value is not None:
                    return value / 1000
        return None

    return Distribution(
        p50=seconds("median", "p50"), p90=seconds("p90"), p99=seconds("p99"), mean=seconds("mean")
    )


def _number(values: Mapping[str, Any], key: str, *, infinite: bool = False) -> float | None:
    value = values.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    if infinite and math.isinf(number):
        return number
    return number if abs(number) <= _MOST else None


def _ratio(part: float | None, whole: float | None) -> float | None:
    ratio = part / whole if part is not None and whole else None
    return ratio if ratio is not None and abs(ratio) <= _MOST else None

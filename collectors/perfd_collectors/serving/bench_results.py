"""Results of `bench_serving`, SGLang's and vLLM's: the text on the terminal, and lines of JSONL."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from perfd.analysis.serving import Distribution
from perfd_collectors.serving.log_text import ANSI

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
    "Acceptance length": "accept_length",
}
_LATENCIES = ("ttft", "tpot", "itl", "e2e")


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchResult:
    """One run of the benchmark; None is what it does not say."""

    backend: str | None = None
    dataset: str | None = None
    request_rate_per_s: float | None = None
    """Infinite when all requests were sent at once."""
    max_concurrency: float | None = None
    completed_requests: float | None = None
    failed_requests: float | None = None
    """vLLM counts them; SGLang leaves them out of `completed`."""
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
    lines = [line for line in text.splitlines() if line.lstrip().startswith("{")]
    # A file that somebody formatted is one document over many lines.
    whole = _objects(text) if text.lstrip().startswith(("{", "[")) else []
    said = whole or [one for line in lines for one in _objects(line)]
    return [_result(one) for one in said] or _texts(text)


def _objects(text: str) -> list[Mapping[str, Any]]:
    try:
        said = json.loads(text)
    except (ValueError, RecursionError):
        return []
    found = said if isinstance(said, list) else [said]
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


def _result(said: Mapping[str, Any]) -> BenchResult:
    # vLLM 0.10 says `endpoint_type`.
    backend, dataset = said.get("backend", said.get("endpoint_type")), said.get("dataset_name")
    duration, prompt = _number(said, "duration"), _number(said, "total_input_tokens")
    output, completed = _number(said, "total_output_tokens"), _number(said, "completed")
    requests_per_s = _first(said, "request_throughput", otherwise=_ratio(completed, duration))
    latencies = {name: found for name in _LATENCIES if (found := _distribution(said, name)) != Distribution()}
    return BenchResult(
        backend=backend if isinstance(backend, str) else None,
        dataset=dataset if isinstance(dataset, str) else None,
        request_rate_per_s=_number(said, "request_rate", infinite=True),
        max_concurrency=_number(said, "max_concurrency"),
        completed_requests=completed,
        failed_requests=_number(said, "failed"),
        duration_s=duration,
        input_tokens=prompt,
        output_tokens=output,
        requests_per_s=requests_per_s,
        input_tokens_per_s=_first(said, "input_throughput", otherwise=_ratio(prompt, duration)),
        output_tokens_per_s=_first(said, "output_throughput", otherwise=_ratio(output, duration)),
        concurrency=_first(
            said, "concurrency", otherwise=_in_flight(latencies, requests_per_s, output, completed)
        ),
        accept_length=_first(said, "accept_length", "spec_decode_acceptance_length"),
        latencies=latencies,
    )


def _in_flight(
    latencies: Mapping[str, Distribution],
    requests_per_s: float | None,
    output: float | None,
    completed: float | None,
) -> float | None:
    """Requests at once by Little's law, for who does not print them: rate times mean time of a request."""
    whole_s = (latencies.get("e2e") or Distribution()).mean
    ttft, tpot = (latencies.get(name, Distribution()).mean for name in ("ttft", "tpot"))
    length = _ratio(output, completed)
    if whole_s is None and ttft is not None and tpot is not None and length is not None:
        whole_s = ttft + tpot * max(0.0, length - 1)
    return None if whole_s is None or requests_per_s is None else whole_s * requests_per_s


def _first(said: Mapping[str, Any], *keys: str, otherwise: float | None = None) -> float | None:
    return next((value for key in keys if (value := _number(said, key)) is not None), otherwise)


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

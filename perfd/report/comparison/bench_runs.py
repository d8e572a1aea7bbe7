"""Results of serving benchmarks as runs that can be compared, load by load."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any, TypedDict

import msgspec

from perfd.errors import PerfdError
from perfd.report.comparison.measures import Better, Measure, MeasuredRun, Unit

_RATES = ("output_tokens_per_s", "requests_per_s", "completed_requests", "input_tokens_per_s")
_LATENCIES = ("ttft", "tpot", "itl", "e2e")
_SAME_LENGTH_RATIO = 0.05
"""Prompts and answers are drawn at random: the means of two runs differ by so much at most."""

Results = Sequence[Mapping[str, Any]]
"""Entries of schema perfd.bench_serving/1."""


class _Quantiles(TypedDict, total=False):
    p50: float | None
    p99: float | None
    mean: float | None


class _Entry(TypedDict, total=False):
    """What is compared of an entry."""

    dataset: str | None
    request_rate_per_s: float | str | None
    max_concurrency: float | None
    completed_requests: float | None
    requests_per_s: float | None
    input_tokens_per_s: float | None
    output_tokens_per_s: float | None
    mean_prompt_tokens: float | None
    mean_output_tokens: float | None
    ttft_s: _Quantiles | None
    tpot_s: _Quantiles | None
    itl_s: _Quantiles | None
    e2e_s: _Quantiles | None


def results_in(document: Mapping[str, Any], name: str) -> Results:
    """The entries of a decoded document; raises `PerfdError`, naming `name`, when there are none."""
    try:
        results: Results = msgspec.convert(document.get("results"), list[_Entry])
    except msgspec.ValidationError as error:
        raise PerfdError(f"{name}: these are not results of perfd bench-serving: {error}.") from error
    if not results:
        raise PerfdError(f"{name}: there is no result in it.")
    return results


def measures_of_benchmarks(a: Results, b: Results, names: tuple[str, str]) -> tuple[MeasuredRun, MeasuredRun]:
    """Two files of results as runs with the same measures; of several runs of one load, the medians.

    What counts is throughput, finished requests, and the medians of latencies: the tails of a short run are
    not steady enough to fail on. Raises `PerfdError` when the second file lacks a load of the first, or the
    requests were others: then there is nothing to compare.
    """
    loads_a, loads_b = _by_load(a), _by_load(b)
    for load, runs in loads_a.items():
        if load not in loads_b:
            raise PerfdError(
                f"{names[1]} has no run at {load}, as {names[0]} has; it has: {', '.join(loads_b)}."
            )
        if differs := _other_requests(runs, loads_b[load]):
            raise PerfdError(f"{names[0]} and {names[1]} measured other requests: {differs}.")
    several = len(loads_a) > 1
    of_a = [one for load in loads_a for one in _measures(loads_a[load], load if several else "")]
    of_b = [one for load in loads_a for one in _measures(loads_b[load], load if several else "")]
    return (
        MeasuredRun(name=names[0], kind="benchmark", measures=of_a),
        MeasuredRun(name=names[1], kind="benchmark", measures=of_b),
    )


def _by_load(results: Results) -> Mapping[str, list[Mapping[str, Any]]]:
    loads: dict[str, list[Mapping[str, Any]]] = {}
    for result in results:
        rate, most = result.get("request_rate_per_s"), result.get("max_concurrency")
        said = ["" if rate is None else f"{rate} requests/s", "" if most is None else f"{most:g} at once"]
        loads.setdefault(", ".join(filter(None, said)) or "an unknown load", []).append(result)
    return loads


def _other_requests(a: Results, b: Results) -> str:
    """How the requests of two runs differ, as text; empty if their known values are the same."""
    for key, words in (("mean_prompt_tokens", "prompts"), ("mean_output_tokens", "answers")):
        one, other = _median(a, key), _median(b, key)
        if one and other and abs(other - one) > _SAME_LENGTH_RATIO * one:
            return f"{words} of {one:.0f} tokens and of {other:.0f}"
    datasets = [{str(run["dataset"]) for run in runs if run.get("dataset")} for runs in (a, b)]
    if datasets[0] and datasets[1] and datasets[0] != datasets[1]:
        return f"of {', '.join(sorted(datasets[0]))} and of {', '.join(sorted(datasets[1]))}"
    return ""


def _measures(runs: Results, load: str) -> list[Measure]:
    prefix = f"{load}: " if load else ""
    rates = [
        Measure(
            name=prefix + key,
            value=_median(runs, key),
            unit=Unit.COUNT if key == "completed_requests" else Unit.PER_SECOND,
            better=Better.HIGHER,
            gate=key != "input_tokens_per_s",
        )
        for key in _RATES
    ]
    latencies = [
        Measure(
            name=f"{prefix}{name}_{statistic}_s",
            value=_median([run.get(f"{name}_s") or {} for run in runs], statistic),
            unit=Unit.SECONDS,
            better=Better.LOWER,
            gate=statistic == "p50",
        )
        for name in _LATENCIES
        for statistic in ("p50", "p99", "mean")
    ]
    return rates + latencies


def _median(runs: Results, key: str) -> float | None:
    known = [value for run in runs if (value := run.get(key)) is not None]
    return median(known) if known else None

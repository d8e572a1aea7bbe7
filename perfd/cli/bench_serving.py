"""`perfd bench-serving`."""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from perfd_collectors.serving.bench import BenchResult, read_results
from rich.console import Console
from rich.table import Table

from perfd.analysis.serving.histograms import Distribution
from perfd.analysis.serving.theory import Theory
from perfd.cli.serving import add_theory_arguments, theory_for
from perfd.errors import PerfdError

_SCHEMA = "perfd.bench_serving/1"
_HELP = """\
Puts results of bench_serving, SGLang's or vLLM's, as text or JSONL, beside what the hardware allows at the
concurrency and lengths of the run. With --json it prints one object of schema perfd.bench_serving/1.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.description = _HELP
    parser.add_argument("results", nargs="+", metavar="RESULT", help="a file of bench_serving")
    parser.add_argument("--json", action="store_true", help=f"print one object of schema {_SCHEMA}")
    add_theory_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Print the results."""
    theory = theory_for(args, None)
    found = [(name, result) for name in args.results for result in _results(Path(name))]
    rows = [{"source": name, **_document(result, theory)} for name, result in found]
    if args.json:
        print(json.dumps({"schema": _SCHEMA, "results": rows}, indent=2, allow_nan=False))
    else:
        _show(rows, Console())
    return 0


def _results(path: Path) -> Sequence[BenchResult]:
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise PerfdError(f"{path} cannot be read: {error.strerror or error}.") from error
    results = read_results(text)
    if not results:
        raise PerfdError(
            f"{path} holds no result of bench_serving: name its --output-file or what it printed."
        )
    return results


def _document(result: BenchResult, theory: Theory | None) -> dict[str, Any]:
    rate = result.request_rate_per_s
    return {
        "backend": result.backend,
        "dataset": result.dataset,
        # JSON has no infinity; a rate of "inf" is what the benchmark calls sending all at once.
        "request_rate_per_s": "inf" if rate is not None and math.isinf(rate) else rate,
        "max_concurrency": result.max_concurrency,
        "completed_requests": result.completed_requests,
        "duration_s": result.duration_s,
        "concurrency": result.concurrency,
        "requests_per_s": result.requests_per_s,
        "input_tokens_per_s": result.input_tokens_per_s,
        "output_tokens_per_s": result.output_tokens_per_s,
        "mean_prompt_tokens": result.mean_prompt_tokens,
        "mean_output_tokens": result.mean_output_tokens,
        "accept_length": result.accept_length,
        **{f"{name}_s": _quantiles(result.latencies.get(name)) for name in ("ttft", "tpot", "itl", "e2e")},
        "theory": None if theory is None else _theory(result, theory),
    }


def _theory(result: BenchResult, theory: Theory) -> Mapping[str, float | None]:
    prompt, output = result.mean_prompt_tokens, result.mean_output_tokens
    tpot = (result.latencies.get("tpot") or result.latencies.get("itl") or Distribution()).p50
    ttft = (result.latencies.get("ttft") or Distribution()).p50
    batch = result.concurrency or result.max_concurrency
    step_s = None
    if prompt is not None and output is not None and batch is not None:
        replicas = 1 if theory.layout.attention_dp else theory.layout.dp
        step_s = theory.decode_step(max(1.0, batch / replicas), prompt + output / 2).total_s
    prefill_s = None if prompt is None else theory.prefill_s(prompt)
    rate = result.output_tokens_per_s
    return {
        "tpot_floor_s": theory.tpot_floor_s,
        "tpot_at_concurrency_s": step_s,
        "tpot_over_theory_ratio": tpot / step_s if tpot is not None and step_s else None,
        "ttft_floor_s": prefill_s,
        "ttft_over_floor_ratio": ttft / prefill_s if ttft is not None and prefill_s else None,
        "output_tokens_per_s_per_gpu": None if rate is None else rate / theory.layout.gpus,
    }


def _quantiles(found: Distribution | None) -> Mapping[str, float | None]:
    known = found or Distribution()
    return {"p50": known.p50, "p90": known.p90, "p99": known.p99, "mean": known.mean}


def _show(rows: Sequence[Mapping[str, Any]], console: Console) -> None:
    table = Table()
    for heading in (
        "source",
        "requests",
        "concurrency",
        "output tok/s",
        "TTFT P50",
        "TPOT P50",
        "P99",
        "theory",
    ):
        table.add_column(heading)
    for row in rows:
        theory = row["theory"] or {}
        table.add_row(
            Path(row["source"]).name,
            _count(row["completed_requests"]),
            _count(row["concurrency"]),
            _count(row["output_tokens_per_s"]),
            _ms(row["ttft_s"]["p50"]),
            _ms(row["tpot_s"]["p50"]),
            _ms(row["tpot_s"]["p99"]),
            _ms(theory.get("tpot_at_concurrency_s")),
        )
    console.print(table)


def _count(value: float | None) -> str:
    return "-" if value is None else f"{value:,.1f}"


def _ms(seconds: float | None) -> str:
    return "-" if seconds is None else f"{1000 * seconds:.1f} ms"

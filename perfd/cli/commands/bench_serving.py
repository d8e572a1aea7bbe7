"""`perfd bench-serving`."""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from perfd_collectors.serving.bench_results import BenchResult, read_results
from rich.console import Console

from perfd.analysis.findings import finding_json
from perfd.analysis.serving import (
    Distribution,
    Engine,
    ServerDocument,
    ServerRates,
    Snapshot,
    Theory,
    compare,
    diagnose,
    distribution_json,
    to_json,
)
from perfd.cli.commands.serving import add_theory_arguments, judged, theory_for
from perfd.cli.serving.serving_sources import (
    ServerSample,
    ServerWatcher,
    access_for,
    add_access_arguments,
    watch,
)
from perfd.cli.terminal import Terminal
from perfd.cli.terminal_table import TerminalTable
from perfd.errors import PerfdError
from perfd.formatting import duration

SCHEMA = "perfd.bench_serving/1"
_MAX_BYTES = 256 * 1024 * 1024
"""Largest result file, which is read as a whole."""
_SOURCE_WIDTH = 28
"""Width of the table's last column, so that the numbers fit on 80 columns."""
_HELP = f"""\
Compares results of SGLang's or vLLM's bench_serving (text, JSON or JSONL) with what the hardware allows at
the run's concurrency and lengths. With --watch and --run it runs the benchmark and also shows the server's
own metrics of that time. With --json it prints one object of schema {SCHEMA}.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.description = _HELP
    parser.add_argument("results", nargs="+", metavar="RESULT", help="a file of bench_serving")
    parser.add_argument("--json", action="store_true", help=f"print one object of schema {SCHEMA}")
    parser.add_argument("--watch", metavar="URL", help="the server under test")
    parser.add_argument(
        "--run",
        nargs=argparse.REMAINDER,
        metavar="CMD",
        help="the benchmark, which writes RESULT; must be the last option: the rest is the command",
    )
    add_access_arguments(parser)
    add_theory_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Print the results; the exit code is the benchmark's where it was run."""
    if (args.watch is None) != (not args.run):
        raise PerfdError("--watch URL and --run CMD belong together: the server, and what measures it.")
    before: dict[str, Sequence[BenchResult]] = {}
    seen: ServerSample | None = None
    if args.watch is not None:
        before = {name: _read(Path(name)) for name in args.results if Path(name).exists()}
        code, seen = watch(ServerWatcher(args.watch, access_for(args)), args.run, quiet=args.json)
        if code != 0:
            print(f"perfd bench-serving: {args.run[0]} ended with exit code {code}.", file=sys.stderr)
            return code
    found = [
        (name, result) for name in args.results for result in results_of(Path(name), before.get(name, ()))
    ]
    theory = theory_for(args, None if seen is None else seen.info)
    watched = None if seen is None else _watched(seen, theory)
    rows = [{"source": name, **document(result, theory), "seen": watched} for name, result in found]
    if args.json:
        print(json.dumps({"schema": SCHEMA, "results": rows}, indent=2, allow_nan=False))
    else:
        _show(rows, Terminal())
    return 0


def results_of(path: Path, before: Sequence[BenchResult] = ()) -> Sequence[BenchResult]:
    """The results of a file that had those of `before`; raises `PerfdError` when there is none new."""
    results = _read(path)
    if not results:
        raise PerfdError(
            f"{path} holds no result of bench_serving: name its --output-file or what it printed."
        )
    # SGLang's benchmark appends to its file; vLLM's writes it anew.
    new = results[len(before) :] if results[: len(before)] == before else results
    if not new:
        raise PerfdError(f"{path} has no result of this run: let the benchmark write there.")
    return new


def _read(path: Path) -> Sequence[BenchResult]:
    try:
        with path.open("rb") as file:
            body = file.read(_MAX_BYTES + 1)
    except OSError as error:
        raise PerfdError(f"{path} cannot be read: {error.strerror or error}.") from error
    if len(body) > _MAX_BYTES:
        raise PerfdError(f"{path} has more than {_MAX_BYTES >> 20} MiB: not a benchmark result.")
    return read_results(body.decode("utf-8", "replace"))


def document(result: BenchResult, theory: Theory | None) -> dict[str, Any]:
    """One entry of the schema, but for where it is from."""
    rate = result.request_rate_per_s
    return {
        "backend": result.backend,
        "dataset": result.dataset,
        # JSON has no infinity; a rate of "inf" is what the benchmark calls sending all at once.
        "request_rate_per_s": "inf" if rate is not None and math.isinf(rate) else rate,
        "max_concurrency": result.max_concurrency,
        "completed_requests": result.completed_requests,
        "failed_requests": result.failed_requests,
        "duration_s": result.duration_s,
        "concurrency": result.concurrency,
        "requests_per_s": result.requests_per_s,
        "input_tokens_per_s": result.input_tokens_per_s,
        "output_tokens_per_s": result.output_tokens_per_s,
        "mean_prompt_tokens": result.mean_prompt_tokens,
        "mean_output_tokens": result.mean_output_tokens,
        "accept_length": result.accept_length,
        **{
            f"{name}_s": distribution_json(result.latencies.get(name))
            for name in ("ttft", "tpot", "itl", "e2e")
        },
        "theory": None if theory is None else _theory(result, theory),
        "findings": [finding_json(one) for one in server_of("", result, theory).findings],
    }


def server_of(source: str, result: BenchResult, theory: Theory | None) -> ServerDocument:
    """A server with these results at the benchmark's load."""
    batch = result.concurrency or result.max_concurrency
    prompt, output = result.mean_prompt_tokens, result.mean_output_tokens
    context = None if prompt is None or output is None else prompt + output / 2
    now = Snapshot(
        engine=Engine.VLLM if "vllm" in (result.backend or "") else Engine.SGLANG,
        running_requests=batch,
        kv_used_tokens=None if batch is None or context is None else batch * context,
    )
    measured = ServerRates(
        now=now,
        latencies=dict(result.latencies),
        mean_prompt_tokens=prompt,
        generation_tokens_per_s=result.output_tokens_per_s,
        prompt_tokens_per_s=result.input_tokens_per_s,
        spec_accept_length=result.accept_length,
    )
    comparison = None if theory is None else compare(measured, theory)
    findings = () if comparison is None else diagnose(measured, comparison)
    return ServerDocument(source=source, measured=measured, comparison=comparison, findings=findings)


def _watched(seen: ServerSample, theory: Theory | None) -> Mapping[str, Any]:
    """The server's own numbers, as an entry of perfd.serving/2."""
    (entry,) = to_json([judged(seen, theory)])["servers"]
    found: Mapping[str, Any] = entry
    return found


def _theory(result: BenchResult, theory: Theory) -> Mapping[str, float | None]:
    prompt, output = result.mean_prompt_tokens, result.mean_output_tokens
    tpot = (result.latencies.get("tpot") or result.latencies.get("itl") or Distribution()).p50
    ttft = (result.latencies.get("ttft") or Distribution()).p50
    batch = result.concurrency or result.max_concurrency
    step_s = None
    if prompt is not None and output is not None and batch is not None:
        replicas = 1 if theory.layout.attention_dp else theory.layout.dp
        step_s = theory.decode_step(max(1.0, batch / replicas), prompt + output / 2).total_s
    # With speculative decoding a step gives several tokens.
    tpot_s = None if step_s is None else step_s / (result.accept_length or 1.0)
    prefill_s = None if prompt is None else theory.prefill_s(prompt)
    rate = result.output_tokens_per_s
    return {
        "tpot_floor_s": theory.tpot_floor_s,
        "tpot_at_concurrency_s": tpot_s,
        "tpot_over_theory_ratio": tpot / tpot_s if tpot is not None and tpot_s else None,
        "ttft_floor_s": prefill_s,
        "ttft_over_floor_ratio": ttft / prefill_s if ttft is not None and prefill_s else None,
        "output_tokens_per_s_per_gpu": None if rate is None else rate / theory.layout.gpus,
    }


def _show(rows: Sequence[Mapping[str, Any]], console: Console) -> None:
    table = TerminalTable()
    table.add_column("source", max_width=_SOURCE_WIDTH, no_wrap=True, overflow="ellipsis")
    for heading in (
        "requests", "at once", "tok/s", "output tok/s", "TTFT p50", "p99", "TPOT p50", "p99", "theory"
    ):  # fmt: skip
        table.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        theory, seen = row["theory"] or {}, row["seen"]
        tpot = row["tpot_s"] if row["tpot_s"]["p50"] is not None else row["itl_s"]
        table.add_row(
            Path(row["source"]).name,
            _count(row["completed_requests"]),
            _count(row["concurrency"]),
            _count(_sum(row["input_tokens_per_s"], row["output_tokens_per_s"])),
            _count(row["output_tokens_per_s"]),
            duration(row["ttft_s"]["p50"]),
            duration(row["ttft_s"]["p99"]),
            duration(tpot["p50"]),
            duration(tpot["p99"]),
            duration(theory.get("tpot_at_concurrency_s")),
        )
        if seen is not None:
            table.add_row(
                f"  {seen['engine']}'s own",
                "",
                _count(seen["running_requests"]),
                _count(_sum(seen["prompt_tokens_per_s"], seen["generation_tokens_per_s"])),
                _count(seen["generation_tokens_per_s"]),
                duration(seen["ttft_s"]["p50"]),
                duration(seen["ttft_s"]["p99"]),
                duration(seen["tpot_s"]["p50"]),
                duration(seen["tpot_s"]["p99"]),
                duration(((seen["theory"] or {}).get("decode_step") or {}).get("total_s")),
            )
    console.print(table)
    for row in rows:
        ratio = (row["theory"] or {}).get("tpot_over_theory_ratio")
        if ratio is not None and not (row["seen"] or row)["findings"]:
            name = Path(row["source"]).name
            console.print(f"\n{name}: no finding; TPOT is {ratio:.2f} times theory.", markup=False)
    # What the server says of itself counts before what follows from the benchmark alone.
    found = [finding for row in rows for finding in (row["seen"] or row)["findings"]]
    for finding in {(one["kind"], tuple(one["evidence"])): one for one in found}.values():
        console.print(f"\n{finding['sentence']} ({finding['certainty']})", markup=False)
        for sentence in (*finding["evidence"], finding["advice"]):
            console.print(f"  {sentence}", markup=False)


def _sum(*values: float | None) -> float | None:
    return None if None in values else sum(value for value in values if value is not None)


def _count(value: float | None) -> str:
    return "-" if value is None else f"{value:,.4g}" if value < 1000 else f"{value:,.0f}"

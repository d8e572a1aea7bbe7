"""`perfd serving`."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from perfd_collectors.model_config.hf_config import MAX_BYTES
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from perfd.analysis.flops.gpu_peak_lookup import find_gpu
from perfd.analysis.serving import (
    Distribution,
    Latency,
    ServerDocument,
    ServerSetup,
    Theory,
    TheoryComparison,
    compare,
    diagnose,
    layout_of,
    served_model,
    theory_of,
    to_json,
)
from perfd.cli.arguments import positive, positive_whole
from perfd.cli.serving.serving_sources import (
    ServerSample,
    ServerWatcher,
    access_for,
    add_access_arguments,
    is_url,
    read_file,
)
from perfd.cli.terminal import Terminal
from perfd.errors import PerfdError, reason_of
from perfd.formatting import count, duration, percent
from perfd.gpu_peaks import load_peaks
from perfd.sandbox.named_files import read_bounded

_HELP = """\
Reads a serving engine, its saved metrics or its log, and compares it with what the hardware allows if model
and GPU are known. With --interval it reads twice, for rates and latencies of that time. With --json it prints
one object of schema perfd.serving/2; null is unknown. See docs/serving.md.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.description = _HELP
    parser.add_argument("sources", nargs="+", metavar="URL|FILE", help="http://host:port, a page, or a log")
    parser.add_argument("--json", action="store_true", help="print one object of schema perfd.serving/2")
    parser.add_argument(
        "--interval",
        type=positive,
        metavar="SECONDS",
        help="read each URL again after this time, for rates",
    )
    add_access_arguments(parser)
    add_theory_arguments(parser)


def add_theory_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what names the model and the hardware, for every verb that compares with theory."""
    group = parser.add_argument_group("theory")
    group.add_argument("--model-config", metavar="FILE", help="the model's config.json (Hugging Face)")
    group.add_argument("--gpu", metavar="NAME", help='as NVML names it, for example "NVIDIA H100 80GB HBM3"')
    group.add_argument(
        "--tp", type=positive_whole, help="tensor parallelism, if the server does not report it"
    )
    group.add_argument("--pp", type=positive_whole, help="pipeline parallelism, likewise")
    group.add_argument("--dp", type=positive_whole, help="data-parallel replicas, likewise")
    group.add_argument("--quantization", metavar="METHOD", help="the server's setting: fp8, awq, ...")
    group.add_argument("--kv-cache-dtype", metavar="TYPE", help="the server's setting: fp8_e4m3, ...")


def run(args: argparse.Namespace) -> int:
    """Print what was seen; sources that cannot be read are named, and make the exit code 2."""
    seen, failed = _look(args)
    servers = [server_document(one, args) for one in seen]
    if args.json and servers:
        print(json.dumps(to_json(servers), indent=2, allow_nan=False))
    elif servers:
        console = Terminal()
        for server in servers:
            _show(server, console, args)
    for error in failed:
        print(f"perfd serving: {error}", file=sys.stderr)
    return 2 if failed else 0


def _look(args: argparse.Namespace) -> tuple[list[ServerSample], list[PerfdError]]:
    """What each source amounts to, all servers over the same time, and what went wrong with others."""
    access = access_for(args)
    found: dict[str, ServerSample] = {}
    failed: dict[str, PerfdError] = {}
    servers = [ServerWatcher(source, access) for source in args.sources if is_url(source)]
    for source in (source for source in args.sources if not is_url(source)):
        try:
            found[source] = read_file(Path(source))
        except PerfdError as error:
            failed[source] = error
    for number in range(1 if args.interval is None or not servers else 2):
        if number:
            time.sleep(args.interval)
        for server in servers:
            try:
                server.look()
            except PerfdError as error:
                failed[server.url] = error
    found |= {server.url: server.seen() for server in servers if server.url not in failed}
    return [found[source] for source in args.sources if source in found], list(failed.values())


def theory_for(args: argparse.Namespace, info: ServerSetup | None) -> Theory | None:
    """The limits of a server's model on its GPUs, or None when one of the two is unknown."""
    setup = info or ServerSetup()
    config = _model_config(args.model_config, setup)
    gpu_name = args.gpu or setup.gpu_name
    if config is None or gpu_name is None:
        return None
    gpu = find_gpu(load_peaks(), gpu_name)
    if gpu is None:
        raise PerfdError(f"The table of peaks has no GPU called {gpu_name!r}: name it as NVML does.")
    arguments: dict[str, Any] = dict(setup.arguments)
    given = {"quantization": args.quantization, "kv_cache_dtype": args.kv_cache_dtype}
    arguments |= {name: value for name, value in given.items() if value is not None}
    model = served_model(config, arguments)
    if model is None:
        raise PerfdError(
            f"{args.model_config or setup.model} lacks the model's sizes: name a config.json with "
            f"num_hidden_layers, "
            "hidden_size and num_attention_heads."
        )
    layout = layout_of(setup, tp=args.tp, pp=args.pp, dp=args.dp)
    if layout is None:
        raise PerfdError("Nothing says how many GPUs share the model: add --tp N, 1 for one.")
    return theory_of(model, layout, gpu)


def server_document(seen: ServerSample, args: argparse.Namespace) -> ServerDocument:
    """What a source amounts to, beside what the arguments say of its hardware."""
    return judged(seen, theory_for(args, seen.info))


def judged(seen: ServerSample, theory: Theory | None) -> ServerDocument:
    """What a source amounts to, beside what its hardware allows."""
    comparison = None if theory is None else compare(seen.measured, theory)
    findings = diagnose(seen.measured, comparison)
    return ServerDocument(
        source=seen.source, measured=seen.measured, comparison=comparison, findings=findings
    )


def _model_config(given: str | None, info: ServerSetup) -> Mapping[str, Any] | None:
    """The file given, else the one in the model's directory when that is on this machine."""
    path = Path(given) if given else Path(info.model or "") / "config.json"
    if given is None and (info.model is None or not path.is_file()):
        return None
    try:
        config = json.loads(read_bounded(path, MAX_BYTES, "a model's config.json"))
    except (OSError, ValueError, RecursionError) as error:
        raise PerfdError(f"{path} is not a model's config.json: {reason_of(error)}.") from error
    if not isinstance(config, dict):
        raise PerfdError(f"{path} is not a model's config.json: it holds no object.")
    return config


def _show(server: ServerDocument, console: Console, args: argparse.Namespace) -> None:
    measured, now = server.measured, server.measured.now
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column()
    table.add_column(overflow="fold")
    table.add_row("source", server.source)
    roles = ", ".join(role for role in now.roles if role != "unified")
    engine = " ".join(filter(None, [now.engine.value, now.version, f"({roles})" if roles else ""]))
    table.add_row("engine", engine)
    table.add_row("model", now.model or "unknown")
    most = "" if now.max_running_requests is None else f" of at most {count(now.max_running_requests)}"
    table.add_row(
        "requests", f"{count(now.running_requests)} running{most}, {count(now.queued_requests)} queued"
    )
    table.add_row("KV cache used", percent(now.kv_cache_used_ratio))
    table.add_row("prefix hits", percent(measured.prefix_hit_ratio))
    generated, prompt = measured.generation_tokens_per_s, measured.prompt_tokens_per_s
    table.add_row("tokens/s", f"{count(generated)} generated, {count(prompt)} prompt")
    latencies = measured.latencies
    table.add_row("TTFT", _latency(latencies.get(Latency.TTFT)))
    table.add_row("TPOT", _latency(measured.tpot))
    table.add_row("end to end", _latency(latencies.get(Latency.E2E)))
    theory = [_no_theory(args)] if server.comparison is None else _theory_rows(server.comparison)
    for name, text in theory:
        table.add_row(name, text)
    console.print(table)
    for note in measured.notes:
        console.print(f"note: {note}", markup=False)
    for finding in server.findings:
        console.print(
            f"\n{finding.headline} ({finding.certainty})",
            markup=False,
        )
        for sentence in (*finding.evidence, f"What to do: {finding.advice}"):
            console.print(Padding(Text(sentence), (0, 0, 0, 2), expand=False))
    console.print()


def _no_theory(args: argparse.Namespace) -> tuple[str, str]:
    """What is missing: whichever of the two was given is known."""
    missing = {"GPU": ("--gpu", args.gpu), "model": ("--model-config", args.model_config)}
    needed = {what: option for what, (option, given) in missing.items() if given is None}
    return "theory", f"none without {' and '.join(needed)}: add {' and '.join(needed.values())}"


def _theory_rows(comparison: TheoryComparison) -> list[tuple[str, str]]:
    theory, step = comparison.theory, comparison.step
    guessed = "" if comparison.prompt_tokens_measured else ", for example"
    prompt = f"{comparison.prompt_tokens:.0f} tokens{guessed}"
    now = duration(None if step is None else step.total_s)
    rows = [
        ("hardware", f"{theory.layout.gpus} x {theory.gpu.name}, {theory.model.precision}"),
        ("TPOT floor", f"{duration(comparison.tpot_floor_s)} alone, {now} now"),
        ("TTFT floor", f"{duration(comparison.ttft_floor_s)} for {prompt}"),
        ("critical batch", f"{theory.critical_batch:.0f}"),
    ]
    ratio = comparison.tpot_over_step_ratio
    if ratio is not None:
        rows.append(
            ("TPOT over theory", f"{ratio:.2f}, memory bandwidth used {percent(comparison.mbu_ratio)}")
        )
    return rows


def _latency(found: Distribution | None) -> str:
    known = found or Distribution()
    if known == Distribution():
        return "unknown"
    values = {"p50": known.p50, "p90": known.p90, "p99": known.p99, "mean": known.mean}
    return ", ".join(f"{name} {duration(value)}" for name, value in values.items())

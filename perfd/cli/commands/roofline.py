"""`perfd roofline`."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import msgspec
from rich import box
from rich.table import Table
from rich.text import Text

from perfd.analysis.flops.gpu_peak_lookup import GpuPeak, find_gpu
from perfd.cli.arguments import positive
from perfd.cli.tables.module_roofline import ModuleRoofline, module_file, module_graph
from perfd.cli.terminal import Terminal
from perfd.cli.terminal_table import TerminalTable
from perfd.cli.traces import trace_reading
from perfd.cli.traces.confined_reading import confinement
from perfd.errors import PerfdError
from perfd.formatting import UNKNOWN, bandwidth, data_size, duration, flops, flops_per_s, percent
from perfd.gpu_peaks import load_peaks
from perfd.report.display_names import kernel_name
from perfd.report.render.report_writer import write_report
from perfd.report.sources.roofline_report import report_of_kernels, report_of_placement
from perfd.sandbox.named_files import refuse_pipe
from perfd.trace.readers.trace_files import with_folders_opened
from perfd.trace.roofline import (
    UNIT_NAMES,
    HloModule,
    KernelMetrics,
    OperationWork,
    Placement,
    hlo_costs,
    judge,
    matmul,
    place,
    read_line,
    read_ncu,
)
from perfd.trace.roofline.hlo_measured import MeasuredOperations, measured_operations

_SIZES = re.compile(r"(?:(\d{1,9})x)?(\d{1,9})x(\d{1,9})x(\d{1,9})")
_EPILOG = """\
With --json it prints one object: {"schema": "perfd.roofline/1", "operation": {"work": {"name",
"flops", "traffic_bytes", "precision", "notes", "arrays" (layouts of a line of HLO)}, "gpu",
"peak_flops_per_s", "memory_bytes_per_s", "intensity_flops_per_byte", "ridge_flops_per_byte",
"attainable_flops_per_s", "minimum_s", "side",
"unverified" (which of the GPU's figures no source confirms), "time_s", "peak_ratio",
"bandwidth_ratio", "attainable_ratio", "verdict", "at_limit"}}; with --ncu
"kernels", a list of what Nsight Compute measured of each, with its "verdict", "limits" (units at
their limit, else the busiest: tensor, compute, dram, l2, l1), "at_limit", "roofline" (points by
level of memory), "summary", "evidence" and "advice", in place of "operation";
with a module of HLO "module": "name", "gpu", "compute_minimum_s", "communication_minimum_s",
"flops", "traffic_bytes", "time_s", "attainable_ratio", "matrix_unit_ratio", "layout_copies",
"sharded_products", "operations". What is not known is null.
Exit codes: 0 the verdict was printed; 2 it cannot be given, with the reason.
"""
_COLUMNS = ("kernel", "time", "compute", "tensor", "DRAM", "L2", "L1", "occup.", "verdict")
_VECTOR = "fp32"
_EXPLAINED = 5
"""Kernels that are explained in the terminal, the longest; a report has all."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = _EPILOG
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--matmul", metavar="[Bx]MxNxK", help="a matrix product, M x K times K x N, B of them")
    what.add_argument(
        "--hlo",
        metavar="LINE|FILE",
        help="a line of XLA's HLO with the shapes of its operands, or a file with an optimized module or"
        " lines of one, with or without times (`fusion.1 | 12.3 ms`)",
    )
    what.add_argument(
        "--ncu",
        metavar="FILE",
        type=Path,
        help="Nsight Compute's report (.ncu-rep), or its `--csv` of any page and any `--metrics`",
    )
    parser.add_argument("--dtype", default="bf16", help="of --matmul (default: bf16)")
    parser.add_argument("--gpu", default="H200", help="as NVML names it, or a part of that (default: H200)")
    parser.add_argument("--time", type=positive, metavar="SECONDS", help="measured time of the operation")
    parser.add_argument(
        "--trace", type=Path, metavar="FILE", help="with --hlo FILE: a JAX trace of that module"
    )
    parser.add_argument(
        "--around",
        metavar="OPERATION",
        help="with --hlo FILE: draw the operation's neighbors (--output .svg)",
    )
    parser.add_argument("--peaks", type=Path, metavar="FILE", help="file of GPU peaks to use first")
    parser.add_argument(
        "--output",
        "-o",
        type=Path,
        metavar="FILE",
        help="write a picture (.svg), or a report (.html, .md, .json)",
    )
    parser.add_argument(
        "--json", action="store_true", help="print only one object of schema perfd.roofline/1"
    )


def run(args: argparse.Namespace) -> int:
    """Say what limits an operation and how far it is from that limit."""
    module = None if args.hlo is None else module_file(args.hlo)
    if module is None and (args.around or args.trace):
        raise PerfdError("--around and --trace need a module: give its file with --hlo.")
    if args.ncu:
        confinement(args, [args.ncu], args.output)()
        kernels = read_ncu(args.ncu)
        document: dict[str, Any] = {"kernels": [_kernel_json(kernel) for kernel in kernels]}
        shown: list[Table | Text] = [_kernels(kernels), *_explanations(kernels)]
        report = report_of_kernels(kernels, args.ncu.name)
    elif module is not None:
        document, shown, report = *_module(args, *module), None
    else:
        work = read_line(args.hlo) if args.hlo is not None else _matmul(args.matmul, args.dtype)
        gpu = _gpu(args.gpu, args.peaks)
        if work.arrays and work.precision == _VECTOR and _VECTOR not in gpu.flops:
            # TPUs: nothing is published of their vector units.
            note = f"The table has no {_VECTOR} peak of {gpu.name}: only the bytes count."
            work = replace(work, flops=0.0, precision=next(iter(gpu.flops)), notes=(*work.notes, note))
        placement = place(work, gpu, args.time)
        document = {"operation": asdict(placement)}
        shown = [_verdict(placement), _placement(placement), *_arrays(work)]
        report = report_of_placement(placement)
    if args.output and report is not None:
        write_report(report, args.output)
    if args.json:
        print(msgspec.json.encode({"schema": "perfd.roofline/1", **document}).decode())
        return 0
    console = Terminal()
    for part in shown:
        console.print(part)
    return 0


def _module(
    args: argparse.Namespace, module: HloModule, measured: MeasuredOperations
) -> tuple[dict[str, Any], list[Table | Text]]:
    if bool(args.output) != bool(args.around):
        raise PerfdError(
            "--output draws the graph around one operation: name it with --around, or use --json."
        )
    if args.around:
        if args.output.suffix.lower() != ".svg":
            raise PerfdError(f"{args.output}: the graph is written as SVG; name it .svg.")
        refuse_pipe(args.output)
        try:
            args.output.write_text(module_graph(module, args.around), encoding="utf-8")
        except OSError as error:
            raise PerfdError(f"{args.output}: cannot be written: {error.strerror or error}.") from error
    gpu = _gpu(args.gpu, args.peaks)
    if args.trace:
        files = with_folders_opened([args.trace])
        (trace, *_) = trace_reading.read(args, files, "nsys")
        measured = measured_operations(trace, module.name, hlo_costs(module))
        if measured.known_ratio is None:
            raise PerfdError(f"{args.trace}: the trace has no operations of {module.name}.")
    found = ModuleRoofline(module, gpu, args.time, measured)
    return found.document(), list(found.shown())


def _matmul(text: str, dtype: str) -> OperationWork:
    found = _SIZES.fullmatch(text.replace(" ", "").lower())
    if not found:
        raise PerfdError(
            f"{text!r} is not the shape of a matrix product: write MxNxK, such as 4096x4096x1024."
        )
    batch, m, n, k = (int(number or 1) for number in found.groups())
    return matmul(m, n, k, dtype, batch=batch)


def _gpu(name: str, override: Path | None) -> GpuPeak:
    table = load_peaks(override)
    found = find_gpu(table, name)
    if found is None:
        known = ", ".join(row.name for row in table.gpus)
        raise PerfdError(f"The table of peaks does not know the GPU {name!r}; it knows {known}.")
    return found


def _kernel_json(kernel: KernelMetrics) -> Mapping[str, Any]:
    plain = asdict(kernel)
    plain["stalls"] = [{"reason": reason, "warps": value} for reason, value in kernel.stalls]
    plain["stall_ratios"] = [{"reason": reason, "ratio": value} for reason, value in kernel.stall_ratios]
    judgment = judge(kernel)
    return plain | {
        "verdict": kernel.verdict,
        "limits": kernel.limits,
        "at_limit": kernel.at_limit,
        "roofline": {
            level: {"intensity_flops_per_byte": intensity, "flops_per_s": speed}
            for level, (intensity, speed) in kernel.roofline_points.items()
        },
        "summary": judgment.summary,
        "evidence": [reason.evidence for reason in judgment.reasons],
        "advice": judgment.advices,
    }


def _verdict(found: Placement) -> Text:
    words = found.verdict.value.replace("_", " ")
    text = Text(f"{found.work.name} on {found.gpu}: {words}", style="bold yellow")
    text.append(
        f"\n{found.intensity_flops_per_byte:.1f} FLOP/byte, the ridge is at {found.ridge_flops_per_byte:.1f}:"
        f" at most {flops_per_s(found.attainable_flops_per_s)}, at least {duration(found.minimum_s)}.",
        style="not bold default",
    )
    for note in found.work.notes:
        text.append(f"\n{note}", style="not bold default")
    return text


def _placement(found: Placement) -> Table:
    table = Table(box=box.SIMPLE, show_header=False, pad_edge=False)
    table.add_column()
    table.add_column(justify="right")
    rows = [
        ("work", flops(found.work.flops)),
        ("traffic", data_size(found.work.traffic_bytes)),
        ("peak", f"{flops_per_s(found.peak_flops_per_s)} ({found.peak_label})"),
        ("bandwidth", f"{bandwidth(found.memory_bytes_per_s)}{found.bandwidth_label}"),
    ]
    if found.time_s is not None:
        rows += [
            ("took", duration(found.time_s)),
            ("of the peak", percent(found.peak_ratio)),
            ("of the bandwidth", percent(found.bandwidth_ratio)),
            ("of what is attainable", percent(found.attainable_ratio)),
        ]
    for row in rows:
        table.add_row(*row)
    return table


def _arrays(work: OperationWork) -> Iterator[TerminalTable]:
    """What the layouts of a line of HLO mean."""
    if not work.arrays:
        return
    table = TerminalTable()
    for name in ("array", "order in memory", "tiles, the innermost first", "place"):
        table.add_column(name)
    for number, row in enumerate(work.arrays):
        table.add_row(Text(f"{row[0]}{'' if number else ' (result)'}"), *map(Text, row[1:]))
    yield table


def _kernels(kernels: list[KernelMetrics]) -> TerminalTable:
    table = TerminalTable()
    for at, name in enumerate(_COLUMNS):
        table.add_column(name, justify="left" if at in {0, len(_COLUMNS) - 1} else "right")
    for kernel in kernels:
        table.add_row(
            Text(kernel_name(kernel.name, 34)),
            duration(kernel.duration_s),
            *map(percent, (kernel.compute_ratio, kernel.tensor_ratio, kernel.dram_ratio)),
            *map(percent, (kernel.l2_ratio, kernel.l1_ratio, kernel.occupancy_ratio)),
            _short_verdict(kernel),
        )
    return table


def _short_verdict(kernel: KernelMetrics) -> str:
    if kernel.verdict is None:
        return UNKNOWN
    words = kernel.verdict.value.replace("_", " ")
    units = ", ".join(UNIT_NAMES[unit] for unit in kernel.limits)
    return f"{words}: {units}{', at limit' if kernel.at_limit else ''}" if units else words


def _explanations(kernels: list[KernelMetrics]) -> Iterator[Text]:
    """The longest kernels, each name once."""
    by_time = sorted(kernels, key=lambda kernel: -(kernel.duration_s or 0.0))
    longest = {kernel.name: kernel for kernel in reversed(by_time)}
    for kernel in sorted(longest.values(), key=lambda one: -(one.duration_s or 0.0))[:_EXPLAINED]:
        judgment = judge(kernel)
        text = Text(
            f"{kernel_name(kernel.name, 60)}: {judgment.summary[:1].lower()}{judgment.summary[1:]}",
            style="bold",
        )
        for reason in judgment.reasons:
            text.append(f"\n  {reason.evidence}", style="not bold default")
        for advice in judgment.advices:
            text.append(f"\n  -> {advice[:1].upper()}{advice[1:]}.", style="not bold green")
        yield text

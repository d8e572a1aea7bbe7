"""`perfd analyze`."""

from __future__ import annotations

import argparse
from pathlib import Path

from perfd.cli.arguments import positive, positive_whole
from perfd.trace.analysis import TraceAnalysis, TraceSettings, analyse
from perfd.trace.document import to_json
from perfd.trace.files import read_traces, with_folders_opened
from perfd.trace.findings import Diagnosis, diagnose

_WIDTH = 110
SUMMARY_JSON = "summary.json"


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.epilog = "Exit codes: 0 the traces were read; 2 one of them cannot be."
    parser.add_argument(
        "files",
        metavar="FILE",
        type=Path,
        nargs="+",
        help="traces of one capture, or a folder of them: Nsight Systems (.sqlite[.gz], .nsys-rep), PyTorch"
        " or JAX (.json[.gz])",
    )
    parser.add_argument("--json", action="store_true", help="print one object of schema perfd.trace/1, only")
    parser.add_argument(
        "--report", type=Path, metavar="FILE", help="write a report too, as Markdown (.md) or HTML (.html)"
    )
    parser.add_argument(
        "--model-flops-per-step",
        type=positive,
        metavar="N",
        help="of the whole job and one step, to tell MFU",
    )
    parser.add_argument(
        "--summary",
        type=Path,
        metavar="FILE",
        help="a summary of the job (perfd.summary/1) that knows the model, to tell MFU; default: summary.json"
        " beside the first trace, if it is there",
    )
    parser.add_argument(
        "--gpus", type=positive_whole, metavar="N", help="GPUs of the whole job; default: as the traces say"
    )
    parser.add_argument("--precision", default="bf16", help="whose dense peak MFU is of (default: bf16)")
    parser.add_argument(
        "--peaks", type=Path, metavar="FILE", help="rows to try before the table of GPU peaks"
    )
    parser.add_argument("--nsys", default="nsys", metavar="PROGRAM", help="exports .nsys-rep files")


def run(args: argparse.Namespace) -> int:
    """Read the traces and say what limits them."""
    files = with_folders_opened(args.files)
    settings = _settings(args, files[0].parent)
    analysis = analyse(read_traces(files, args.nsys), settings)
    diagnosis = diagnose(analysis)
    if args.report:
        _write(analysis, diagnosis, args.report)
    if args.json:
        _print(analysis, diagnosis)
    else:
        _show(analysis, diagnosis)
    return 0


# What only some runs need is imported by them: half of the time of this command is Python that starts.


def _settings(args: argparse.Namespace, folder: Path) -> TraceSettings:
    summary = folder / SUMMARY_JSON
    beside = summary if summary.is_file() else None
    if not (args.summary or beside or args.peaks or args.model_flops_per_step):
        return TraceSettings(gpus=args.gpus, precision=args.precision)
    from perfd.cli.analyze_job import settings_of  # noqa: PLC0415

    return settings_of(
        named=args.summary,
        beside=beside,
        peaks=args.peaks,
        model_flops_per_step=args.model_flops_per_step,
        gpus=args.gpus,
        precision=args.precision,
    )


def _write(analysis: TraceAnalysis, diagnosis: Diagnosis, path: Path) -> None:
    from perfd.report.from_trace import report_of_trace  # noqa: PLC0415
    from perfd.report.write import write_report  # noqa: PLC0415

    write_report(report_of_trace(analysis, diagnosis), path)


def _print(analysis: TraceAnalysis, diagnosis: Diagnosis) -> None:
    import msgspec  # noqa: PLC0415

    print(msgspec.json.encode(to_json(analysis, diagnosis)).decode())


def _show(analysis: TraceAnalysis, diagnosis: Diagnosis) -> None:
    from rich.console import Console  # noqa: PLC0415

    from perfd.report.terminal import render  # noqa: PLC0415

    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=_WIDTH)
    console.print(render(analysis, diagnosis))

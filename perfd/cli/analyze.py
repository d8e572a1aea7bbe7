"""`perfd analyze`."""

from __future__ import annotations

import argparse
from pathlib import Path

import msgspec
from rich.console import Console

from perfd.analysis.summary import JobSummary
from perfd.cli.arguments import positive, positive_whole
from perfd.peaks import load_peaks
from perfd.report.from_trace import report_of_trace
from perfd.report.summaries import one_job, read_summary
from perfd.report.terminal import render
from perfd.report.write import write_report
from perfd.trace.analysis import TraceSettings, analyse
from perfd.trace.document import to_json
from perfd.trace.files import read_traces, with_folders_opened
from perfd.trace.findings import diagnose

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
    job = _job(args.summary, files[0].parent)
    settings = TraceSettings(
        model_flops_per_step=args.model_flops_per_step,
        model_flops_per_s_per_gpu=job.model_flops_per_s_per_gpu if job else None,
        step_time_s=job.step_time_s.median if job else None,
        gpus=args.gpus,
        precision=args.precision,
        peaks=load_peaks(args.peaks),
    )
    analysis = analyse(read_traces(files, args.nsys), settings)
    diagnosis = diagnose(analysis)
    if args.report:
        write_report(report_of_trace(analysis, diagnosis), args.report)
    if args.json:
        print(msgspec.json.encode(to_json(analysis, diagnosis)).decode())
    else:
        console = Console(highlight=False)
        if not console.is_terminal:
            console = Console(highlight=False, width=_WIDTH)
        console.print(render(analysis, diagnosis))
    return 0


def _job(summary: Path | None, folder: Path) -> JobSummary | None:
    """The job that a summary describes; one that merely lies there must describe one job to be used."""
    if summary:
        return one_job(read_summary(summary), None, str(summary))
    beside = folder / SUMMARY_JSON
    if not beside.is_file():
        return None
    jobs = read_summary(beside)
    return jobs[0] if len(jobs) == 1 else None

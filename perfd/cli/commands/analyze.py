"""`perfd analyze`."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from perfd.cli.arguments import positive, positive_whole, whole_from_zero


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.epilog = "Exit codes: 0 success; 2 a trace cannot be read."
    parser.add_argument(
        "files",
        metavar="FILE",
        type=Path,
        nargs="+",
        help="traces of one capture, or a directory of them: Nsight Systems (.sqlite[.gz], .nsys-rep),"
        " PyTorch or JAX (.json[.gz], .xplane.pb)",
    )
    parser.add_argument("--json", action="store_true", help="print one object of schema perfd.trace/2")
    parser.add_argument(
        "--report", type=Path, metavar="FILE", help="also write a report, Markdown (.md) or HTML (.html)"
    )
    parser.add_argument(
        "--model-flops-per-step",
        type=positive,
        metavar="N",
        help="model FLOPs of the whole job per step, for MFU",
    )
    parser.add_argument(
        "--summary",
        type=Path,
        metavar="FILE",
        help="a summary of the job (perfd.summary/2) with its model, for MFU; default: summary.json next to"
        " the first trace",
    )
    parser.add_argument(
        "--gpus", type=positive_whole, metavar="N", help="GPUs of the whole job (default: from the traces)"
    )
    parser.add_argument(
        "--precision",
        help="precision of the dense peak that MFU uses; default: that of the summary, else bf16",
    )
    parser.add_argument(
        "--slow-rank",
        type=whole_from_zero,
        metavar="N",
        help="the rank that the capture was made for: why it is slower than its peers comes first",
    )
    parser.add_argument("--peaks", type=Path, metavar="FILE", help="file of GPU peaks to use first")
    parser.add_argument(
        "--nsys", default="nsys", metavar="PROGRAM", help="nsys program that exports .nsys-rep files"
    )


def run(args: argparse.Namespace) -> int:
    """Read the traces and say what limits them."""
    # As numpy is loaded: nothing here is for its linear algebra, whose threads would only take time to start.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from perfd.cli.traces.analyze_traces import analyze  # noqa: PLC0415

    return analyze(args)

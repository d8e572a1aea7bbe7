"""`perfd analyze` itself, apart from its arguments because it imports NumPy."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from perfd.analysis.flops.gpu_peak_lookup import PeakTable
from perfd.cli.traces import trace_reading
from perfd.errors import TraceError
from perfd.trace.diagnosis import Diagnosis, TraceAnalysis, TraceSettings, analyse, diagnose, to_json
from perfd.trace.model.rank_trace import RankTrace
from perfd.trace.readers.trace_files import SUMMARY_JSON, with_folders_opened


def analyze(args: argparse.Namespace) -> int:
    """Read the traces that the arguments name, say what limits them, and return the exit code."""
    _refuse_recordings([path for path in args.files if not path.is_file()])
    files = with_folders_opened(args.files)
    settings = _settings(args, files[0].parent)
    traces = trace_reading.read(args, files, args.nsys, written=args.report)
    analysis = analyse(traces, _with_links(settings, traces))
    diagnosis = diagnose(analysis, slow_rank=args.slow_rank)
    if args.report:
        _write(analysis, diagnosis, args.report)
    if args.json:
        _print(analysis, diagnosis)
    else:
        _show(analysis, diagnosis)
    return 0


# What only some runs need is imported by them: half of the time of this command is Python that starts.


def _refuse_recordings(paths: list[Path]) -> None:
    if not paths:
        return
    from perfd.recording.recording_format import names_recording  # noqa: PLC0415

    for path in paths:
        if names_recording(str(path)):
            raise TraceError(
                f"{path} is a recording of a job, which has no traces: ask `perfd diagnose {path}` or"
                f" `perfd report {path}`."
            )


def _settings(args: argparse.Namespace, folder: Path) -> TraceSettings:
    summary = folder / SUMMARY_JSON
    beside = summary if summary.is_file() else None
    if not (args.summary or beside or args.peaks or args.model_flops_per_step):
        return TraceSettings(gpus=args.gpus)
    from perfd.cli.traces.trace_settings import settings_of  # noqa: PLC0415

    return settings_of(
        named=args.summary,
        beside=beside,
        peaks=args.peaks,
        model_flops_per_step=args.model_flops_per_step,
        gpus=args.gpus,
        precision=args.precision,
    )


def _with_links(settings: TraceSettings, traces: Sequence[RankTrace]) -> TraceSettings:
    """With the table of GPUs where it adds something: the least time of collectives of known size."""
    sized = any(one.size_bytes for trace in traces for one in trace.collectives)
    if settings.peaks != PeakTable() or not sized:
        return settings
    from perfd.gpu_peaks import load_peaks  # noqa: PLC0415

    return replace(settings, peaks=load_peaks(None))


def _write(analysis: TraceAnalysis, diagnosis: Diagnosis, path: Path) -> None:
    from perfd.report.render.report_writer import write_report  # noqa: PLC0415
    from perfd.report.sources.from_trace import report_of_trace  # noqa: PLC0415

    write_report(report_of_trace(analysis, diagnosis), path)


def _print(analysis: TraceAnalysis, diagnosis: Diagnosis) -> None:
    import msgspec  # noqa: PLC0415

    print(msgspec.json.encode(to_json(analysis, diagnosis)).decode())


def _show(analysis: TraceAnalysis, diagnosis: Diagnosis) -> None:
    from perfd.cli.terminal import Terminal  # noqa: PLC0415
    from perfd.cli.traces.analysis_text import render  # noqa: PLC0415

    Terminal().print(render(analysis, diagnosis))

"""`perfd capture show --analyze`, apart because no other action needs traces and NumPy."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from perfd.analysis.diagnosis import JobSummary
from perfd.capture.node import TRACE_SUFFIXES, reading
from perfd.capture.selection import slow_rank_of
from perfd.cli.traces.trace_settings import settings_for
from perfd.errors import PerfdError
from perfd.model import CaptureState
from perfd.report.render.report_writer import write_report
from perfd.report.sources.from_trace import report_of_trace
from perfd.trace.diagnosis import analyse, diagnose, to_json
from perfd.trace.readers.trace_files import read_traces


def analyze(capture: Mapping[str, Any], job: JobSummary | None = None) -> list[Path]:
    """Analyze the traces of this node, all ranks of a folder together; the files that were written.

    What is known of the job makes MFU of them.
    """
    # One that is known to hold nothing of a GPU would only keep the others from being read.
    ranks = [who for who in capture["ranks"] if who["state"] != CaptureState.EMPTY] or capture["ranks"]
    files = {Path(file["path"]) for who in ranks for file in who["files"]}
    traces = sorted(file for file in files if file.name.endswith(TRACE_SUFFIXES) and file.is_file())
    if not traces:
        raise PerfdError(
            f"Capture {capture['id']} has no trace that can be read here; "
            "run this on the node that has its files, as the agent's user."
        )
    written: list[Path] = []
    for folder in dict.fromkeys(trace.parent for trace in traces):
        with reading(folder):
            analysis = analyse(
                read_traces([trace for trace in traces if trace.parent == folder], "nsys"),
                settings_for(job),
            )
        diagnosis = diagnose(analysis, slow_rank=slow_rank_of(capture.get("labels") or {}))
        document, report = folder / "perfd.trace.json", folder / "perfd.report.html"
        for path in (document, report):
            # A report names kernels and shapes of the model: as private as the trace.
            path.unlink(missing_ok=True)
            path.touch(mode=0o600)
        document.write_bytes(msgspec.json.encode(to_json(analysis, diagnosis)))
        write_report(report_of_trace(analysis, diagnosis), report)
        written += [document, report]
    return written

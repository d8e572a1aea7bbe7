"""`perfd capture show --analyze`, with one `perfd analyze` per folder, which sandboxes itself."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from perfd.analysis.diagnosis import JobSummary, to_json
from perfd.capture.node import TRACE_SUFFIXES, reading
from perfd.capture.selection import slow_rank_of
from perfd.cli.traces.analysis_process import run_analysis
from perfd.errors import PerfdError
from perfd.model import CaptureState


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
        document, report = folder / "perfd.trace.json", folder / "perfd.report.html"
        for path in (document, report):
            # A report names kernels and shapes of the model: as private as the trace.
            path.unlink(missing_ok=True)
            path.touch(mode=0o600)
        try:
            with tempfile.TemporaryDirectory(prefix="perfd-analyze-") as scratch, reading(folder):
                asked = ["--report", str(report), *_known(job, Path(scratch)), *_question(capture)]
                mine = [str(trace) for trace in traces if trace.parent == folder]
                with document.open("wb") as output:
                    run_analysis([*asked, *mine], output, shown_as=str(folder))
        except BaseException:
            document.unlink()
            report.unlink()
            raise
        written += [document, report]
    return written


def _known(job: JobSummary | None, scratch: Path) -> list[str]:
    if job is None:
        return []
    file = scratch / "summary.json"
    file.write_bytes(msgspec.json.encode(to_json([job])))
    return ["--summary", str(file)]


def _question(capture: Mapping[str, Any]) -> list[str]:
    rank = slow_rank_of(capture.get("labels") or {})
    return [] if rank is None else ["--slow-rank", str(rank)]

"""Reads files of perfd.summary/2."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec

from perfd.analysis.diagnosis import SCHEMA, JobSummary, from_json
from perfd.errors import PerfdError, TraceError
from perfd.sandbox.named_files import read_bounded
from perfd.trace.readers.trace_files import SUMMARY_JSON, with_folders_opened

_MAX_BYTES = 256 * 1024 * 1024
"""16,384 ranks of 1 kB each are 16 MB."""


def summary_of_run(path: Path) -> Path:
    """The summary in a folder that `perfd run` left; the path itself when it is anything else."""
    inside = path / SUMMARY_JSON
    if not inside.is_file():
        return path
    try:
        # Of a folder with traces the summary is an addition.
        with_folders_opened([path])
    except TraceError:
        return inside
    return path


def read_summary(path: Path) -> list[JobSummary]:
    """The jobs of a file that `perfd replay --json` or an aggregator wrote.

    Raises `PerfdError`, naming the file, when it is no such file or names no job.
    """
    try:
        document = msgspec.json.decode(read_bounded(path, _MAX_BYTES, "a job summary"))
    except OSError as error:
        raise PerfdError(f"{path}: cannot be read: {error.strerror or error}.") from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise PerfdError(
            f"{path}: not a job summary, such as the summary.json of a `perfd run`: {error}."
        ) from error
    return jobs_of(document, str(path))


def jobs_of(document: object, name: str) -> list[JobSummary]:
    """The jobs of a decoded document; raises `PerfdError`, naming `name`, if it is not a summary."""
    if not isinstance(document, dict) or not _is_summary(document):
        raise PerfdError(f"{name}: not a job summary: its schema is not {SCHEMA}.")
    if document["schema"] != SCHEMA:
        raise PerfdError(
            f"{name}: the summary is of schema {document['schema']}, and this perfd reads only {SCHEMA}:"
            " replay the recording again, or use the perfd that wrote it."
        )
    try:
        jobs = from_json(document)
    except msgspec.ValidationError as error:
        raise PerfdError(f"{name}: the summary is not as perfd writes it: {error}.") from error
    if not jobs:
        raise PerfdError(f"{name}: the summary names no job.")
    return jobs


def one_job(jobs: list[JobSummary], wanted: str | None, name: str) -> JobSummary:
    """The job of that name, or the only one; raises `PerfdError` with the names when that is not clear."""
    found = [job for job in jobs if wanted in {None, job.name}]
    if len(found) == 1:
        return found[0]
    names = ", ".join(job.name for job in jobs)
    problem = f"no job {wanted}" if wanted else "several jobs; name one with --job"
    raise PerfdError(f"{name}: the summary has {problem}: {names}.")


def _is_summary(document: Mapping[str, object]) -> bool:
    return str(document.get("schema")).startswith(SCHEMA.rpartition("/")[0] + "/")

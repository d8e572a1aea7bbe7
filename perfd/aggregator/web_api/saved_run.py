"""A run that is over: what the page and the API showed of it at its end, in one file."""

from __future__ import annotations

import gzip
import math
import zlib
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any, Never

import msgspec
import numpy as np

from perfd.aggregator.web_api.api_routes import ApiSource
from perfd.aggregator.web_api.charts import trend, without_ranks
from perfd.analysis.diagnosis import JobSummary, to_json
from perfd.capture.capture_routes import StartBody
from perfd.errors import CaptureError, PerfdError, StorageError
from perfd.sandbox.named_files import require_bounded

PAGE_FILE = "page.json.gz"
_SCHEMA = "perfd.page/1"
_STEPS = 10_000
"""The newest, as many as the API gives at a time."""
_POINTS = 2_000
"""Of a step chart, as many as the API gives at most."""
_GPU_POINTS = 300
"""Of a GPU's chart, of which each rank has several: its width in pixels. Chosen."""
_MAX_BYTES = 128 * 1024 * 1024
"""Unpacked: 10,000 steps of 16,384 ranks stay far below it, and a file that claims more is not ours."""
_SHOWN_FOLDERS = 3
"""Newest runs that are named when the folder itself holds none."""
_OVER = "This run has ended: {what}."


_NO_GPUS: dict[str, Any] = {"time_unix_s": [], "gpus": 0, "metrics": {}}
_LISTS = ("servers", "alerts", "agents", "nodes", "captures")


class _Job(msgspec.Struct, kw_only=True):
    overview: dict[str, Any]
    summary: dict[str, Any]
    steps: list[dict[str, Any]]
    series: dict[str, Any]
    gpu_series: dict[str, Any] = msgspec.field(default_factory=_NO_GPUS.copy)


class _Page(msgspec.Struct, kw_only=True):
    schema: str
    saved_unix_s: float
    fleet: dict[str, Any]
    jobs: dict[str, _Job]
    servers: list[dict[str, Any]]
    alerts: list[dict[str, Any]]
    agents: list[dict[str, Any]]
    nodes: list[dict[str, Any]]
    """All of which something is known."""
    captures: list[dict[str, Any]]
    links: dict[str, dict[str, str]] = {}


def save_run(source: ApiSource, path: Path, saved_unix_s: float) -> None:
    """Write what `source` serves now; raises `OSError` if the disk refuses it."""
    names = source.jobs()
    summaries = {name: to_json(source.summary(name))["jobs"][0] for name in names}
    page = _Page(
        schema=_SCHEMA,
        saved_unix_s=saved_unix_s,
        fleet=source.fleet(),
        jobs={
            name: _Job(
                overview=source.overview(name)[0],
                summary=summaries[name],
                steps=source.steps(name, 0, _STEPS) or [],
                series=source.series(name, _POINTS) or {},
                gpu_series=source.gpu_series(name, _GPU_POINTS, None) or _NO_GPUS,
            )
            for name in names
        },
        servers=source.servers(),
        alerts=source.alerts(),
        agents=source.agents(),
        nodes=source.nodes(blamed_only=False),
        captures=source.captures(),
        links={place: dict(found) for place, found in source.links().items()},
    )
    path.write_bytes(gzip.compress(msgspec.json.encode(page), mtime=0))


class SavedRun(ApiSource):
    """Serves what `save_run` wrote of one run or of several, as an aggregator does that has no history.

    Raises `PerfdError` if a folder has no page, or one that cannot be read.
    """

    def __init__(self, *folders: Path) -> None:
        pages = [_read(folder) for folder in folders]
        names = [folder.resolve().name for folder in folders]
        try:
            self._page = pages[0] if len(pages) == 1 else _together(pages, names)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise PerfdError(f"Pages of {', '.join(names)} are damaged: {error!r}.") from error

    @property
    def saved_unix_s(self) -> float:
        """When it was saved."""
        return self._page.saved_unix_s

    def metrics(self, headers: Mapping[str, str]) -> Never:
        """Nothing: `stale` answers first."""
        del headers
        raise PerfdError(_OVER.format(what="it has no metrics"))

    def links(self) -> Mapping[str, Mapping[str, str]]:
        """Links that were configured for the run."""
        return self._page.links

    def jobs(self) -> list[str]:
        """Names of its jobs."""
        return list(self._page.jobs)

    def overview(self, job: str | None = None, *, ranks: bool = True) -> list[dict[str, Any]]:
        """One entry per job, or that of one job, with or without its ranks."""
        found = [one.overview for name, one in self._page.jobs.items() if job in {None, name}]
        return found if ranks else list(map(without_ranks, found))

    def newest(self, jobs: Sequence[str], *, ranks: bool = True) -> list[dict[str, Any]]:
        """The entries of these jobs, in their order."""
        return [entry for name in jobs for entry in self.overview(name, ranks=ranks)]

    def fleet(self) -> dict[str, Any]:
        return self._page.fleet

    def trend(self, job: str) -> list[float]:
        """Step time over the last hour of a job, of the points that were saved."""
        found = self._page.jobs.get(job)
        columns = [found.series.get(name, []) if found else [] for name in ("time_unix_s", "step_time_s")]
        return trend(*(np.array(column, dtype=np.float64) for column in columns))

    def servers(self) -> list[dict[str, Any]]:
        """Serving engines."""
        return self._page.servers

    def summary(self, job: str | None = None) -> list[JobSummary]:
        """None in memory: they are stored."""
        del job
        return []

    def summary_since(self, job: str, since_unix_s: float) -> None:
        """None: the measurements themselves are not saved."""
        del job, since_unix_s

    def stored_summary(self, job: str) -> Mapping[str, Any] | None:
        """The summary of a job; None if the run has no such job."""
        found = self._page.jobs.get(job)
        return found.summary if found else None

    def steps(self, job: str, first_step: int, limit: int) -> list[dict[str, Any]] | None:
        """Progress lines of a job."""
        found = self._page.jobs.get(job)
        if found is None:
            return None
        return [line for line in found.steps if line.get("step", -1) >= first_step][:limit]

    def series(
        self,
        job: str,
        points: int,
        within: tuple[float, float] | None = None,
        newest_s: float | None = None,
    ) -> dict[str, Any] | None:
        found = self._page.jobs.get(job)
        if found is None:
            return None
        low, high = within or (-math.inf, math.inf)
        steps, times = found.series.get("step", []), found.series.get("time_unix_s", [])
        since_s = max(times, default=0.0) - (math.inf if newest_s is None else newest_s)
        rows = [row for row, step in enumerate(steps) if low <= step <= high and times[row] >= since_s]
        stride = max(1, math.ceil(len(rows) / points))
        # The newest point is always one of them.
        return _picked(found.series, rows[::-1][::stride][::-1])

    def gpu_series(
        self, job: str, points: int, rank: int | None, newest_s: float | None = None
    ) -> dict[str, Any] | None:
        """The keys of schema perfd.gpu_series/1, as they were saved; `rank` only where its samples were."""
        del points, rank, newest_s
        found = self._page.jobs.get(job)
        return None if found is None else found.gpu_series

    def alerts(self) -> list[dict[str, Any]]:
        return self._page.alerts

    def agents(self) -> list[dict[str, Any]]:
        return self._page.agents

    def nodes(self, *, blamed_only: bool = True, node: str | None = None) -> list[dict[str, Any]]:
        """Nodes, the most suspect first."""
        return [
            one
            for one in self._page.nodes
            if (one["node"] == node if node is not None else one["incident_count"] or not blamed_only)
        ]

    def captures(self) -> list[dict[str, Any]]:
        return self._page.captures

    def stored_file(self, url: str, max_bytes: int) -> Never:
        del max_bytes
        raise StorageError(_OVER.format(what=f"{url} is not read"))

    def file_link(self, capture_id: str, name: str) -> Never:
        raise StorageError(_OVER.format(what=f"there are no links to {name} of {capture_id}"))

    def start_capture(self, body: StartBody) -> Never:
        """Raises `CaptureError`: there are no processes."""
        del body
        raise CaptureError(_OVER.format(what="it has no processes to capture"))

    def cancel_capture(self, capture_id: str, reason: str) -> Never:
        """Raises `CaptureError`: none is running."""
        del capture_id, reason
        raise CaptureError(_OVER.format(what="none of its captures is running"))

    def stale(self) -> str:
        """Why there are no metrics."""
        return _OVER.format(what="its page and API are saved, its metrics are not")


def _picked(columns: Mapping[str, Any], rows: Sequence[int]) -> dict[str, Any]:
    return {
        name: _picked(values, rows) if isinstance(values, Mapping) else [values[row] for row in rows]
        for name, values in columns.items()
    }


def _together(pages: Sequence[_Page], folders: Sequence[str]) -> _Page:
    """The pages of several runs as one; a job whose name others have too gets that of its folder."""
    taken = Counter(name for page in pages for name in page.jobs)
    shown: set[str] = set()
    merged = _Page(
        schema=_SCHEMA,
        saved_unix_s=max(page.saved_unix_s for page in pages),
        fleet={"jobs": [], "alerts": [], "agents": Counter(), "servers": Counter()},
        **{key: [] for key in _LISTS},
        jobs={},
        # Elsewhere a job may have another name than here.
        links={},
    )
    for page, folder in zip(pages, folders, strict=True):
        names = {name: name if taken[name] == 1 else _unused(folder, shown) for name in page.jobs}
        shown.update(names.values())
        for name, job in page.jobs.items():
            here = names[name]
            merged.jobs[here] = _Job(
                overview=job.overview | {"name": here},
                summary=job.summary | {"name": here},
                steps=job.steps,
                series=job.series,
                gpu_series=job.gpu_series,
            )
        merged.fleet["jobs"] += [row | {"name": names[row["name"]]} for row in page.fleet["jobs"]]
        merged.fleet["alerts"] += page.fleet["alerts"]
        for what in ("agents", "servers"):
            merged.fleet[what].update(page.fleet[what])
        for key in _LISTS:
            entries = getattr(merged, key)
            entries += [one | _job_of(one, names) for one in getattr(page, key)]
    return merged


def _job_of(entry: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    return {"job": names.get(entry["job"], entry["job"])} if "job" in entry else {}


def _unused(folder: str, shown: set[str]) -> str:
    """The name of a folder, counted on where it is given twice."""
    names = (folder if number == 1 else f"{folder} ({number})" for number in count(1))
    return next(name for name in names if name not in shown)


def _instead(folder: Path) -> str:
    """What to open instead of a folder without a page."""
    below = sorted(folder.glob(f"*/{PAGE_FILE}"), key=lambda path: path.stat().st_mtime, reverse=True)
    if not below:
        return (
            "`perfd run` writes it at the end of a job; "
            f"`perfd report {folder}` makes a report from a summary alone."
        )
    newest = ", ".join(str(path.parent) for path in below[:_SHOWN_FOLDERS])
    return f"The newest runs below it: {newest}."


def _read(folder: Path) -> _Page:
    path = folder / PAGE_FILE
    try:
        require_bounded(path, _MAX_BYTES, "a saved page")
        with gzip.open(path, "rb") as file:
            content = file.read(_MAX_BYTES + 1)
    except FileNotFoundError:
        if not folder.exists():
            raise PerfdError(f"{folder} does not exist: check the path.") from None
        raise PerfdError(f"{folder} has no saved page ({PAGE_FILE}). {_instead(folder)}") from None
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise PerfdError(f"{path} is damaged: {error}.") from error
    if len(content) > _MAX_BYTES:
        raise PerfdError(f"{path} is larger than {_MAX_BYTES >> 20} MiB when unpacked.")
    try:
        page = msgspec.json.decode(content, type=_Page)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise PerfdError(f"{path} is not a saved page of perfd: {error}.") from error
    if page.schema != _SCHEMA:
        raise PerfdError(f"{path} has schema {page.schema!r}; this perfd reads {_SCHEMA}.")
    return page

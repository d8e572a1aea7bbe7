"""Reads the traces of a capture: any mix of files, each by what is in it and not by its name."""

from __future__ import annotations

import re
import stat
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from perfd.errors import TraceError, WithoutGpuError
from perfd.trace.model.rank_trace import RankTrace
from perfd.trace.readers.jax_collectives import renumbered
from perfd.trace.readers.nsys import nsys_reader
from perfd.trace.readers.nsys.nccl_calls import with_groups

_SQLITE = b"SQLite format 3\0"
_GZIP = b"\x1f\x8b"
_NSIGHT_COMPUTE = b"NVR\0"
_XPLANE = (".xplane.pb", ".xplane.pb.gz")
_SUFFIXES = (".json", ".json.gz", ".sqlite", ".sqlite.gz", ".nsys-rep", *_XPLANE)
SUMMARY_JSON = "summary.json"
"""What perfd knows of a job: in the folder of its run, and beside traces of it."""
_NO_TRACES = ("perfd.trace.json", SUMMARY_JSON, "capture.json", ".stacks.json", "page.json.gz")
"""What perfd leaves beside traces."""
_SMALL_BYTES = 2**20
"""A JSON file up to this size is checked before it is taken for a trace."""
_WINDOW = re.compile(r"(.+)\.(\d{10,20})\.pt\.trace\.json(?:\.gz)?")
"""As PyTorch's handler for TensorBoard names a window: by process, and when it ended."""
_BELOW = 3
"""Folders with traces that the message names."""


@dataclass(frozen=True, slots=True)
class ReadProgress:
    """Which file is read or exported next."""

    path: Path
    number: int
    """From 1 to `total`."""
    total: int
    size_bytes: int
    exporting: bool = False
    """Whether Nsight Systems makes a database of it, which is read later."""


def with_folders_opened(paths: Iterable[Path]) -> list[Path]:
    """The paths with each folder replaced by the traces in it; raises `TraceError` when one has none."""
    return [file for path in paths for file in (_traces_in(path) if path.is_dir() else [path])]


def _traces_in(folder: Path) -> list[Path]:
    # JAX's profiler creates one folder per run in its log folder, named after the time.
    runs = sorted(path for path in folder.glob("plugins/profile/*") if path.is_dir())
    folder = runs[-1] if runs else folder
    try:
        files = sorted(folder.iterdir())
    except OSError as error:
        raise TraceError(f"{folder}: cannot be read: {error.strerror or error}.") from error
    # An .nsys-rep holds the same ranks as the .sqlite that was exported from it.
    known = {file.with_suffix(".nsys-rep") for file in files if file.suffix == ".sqlite"}
    # As do the traces that JAX's profiler makes of an .xplane.pb, which may lack events.
    spaces = {file.name.partition(".xplane.pb")[0] for file in files if file.name.endswith(_XPLANE)}
    known |= {folder / f"{host}.trace.json.gz" for host in spaces}
    if spaces or any(file.name.endswith(".trace.json.gz") for file in files):
        known.add(folder / "perfetto_trace.json.gz")
    known |= {earlier for file in files for earlier in _earlier_windows(file, files)}
    traces = [file for file in files if _looks_like_a_trace(file) and file not in known]
    if not traces:
        raise TraceError(f"{folder}: this folder holds no trace{_instead(folder)}.")
    return traces


def _earlier_windows(file: Path, files: Iterable[Path]) -> list[Path]:
    """Of these files, those with earlier windows of the same process, as of a schedule with `repeat`."""
    named = _WINDOW.fullmatch(file.name)
    if named is None:
        return []
    others = ((other, _WINDOW.fullmatch(other.name)) for other in files)
    return [other for other, name in others if name and name[1] == named[1] and int(name[2]) < int(named[2])]


def _beside(file: Path, files: Sequence[Path]) -> list[Path]:
    """Earlier windows in its folder that are not read."""
    if _WINDOW.fullmatch(file.name) is None:
        return []
    return [one for one in _earlier_windows(file, file.parent.iterdir()) if one not in files]


def _looks_like_a_trace(file: Path) -> bool:
    """By its name; of small JSON, of which jobs leave some beside their traces, by what is in it too."""
    name = file.name
    if name.startswith(".") or not name.endswith(_SUFFIXES) or name.endswith(_NO_TRACES):
        return False
    if not name.endswith(".json"):
        return True
    try:
        status = file.stat()
        checked = stat.S_ISREG(status.st_mode) and status.st_size <= _SMALL_BYTES
        content = file.read_bytes() if checked else None
    except OSError:
        # Whoever reads it says what is wrong.
        return True
    return content is None or b"traceEvents" in content or content.lstrip()[:1] != b"{"


def _instead(folder: Path) -> str:
    """Folders with traces that a user who names this folder may mean."""
    found = (file for pattern in ("*/*", "captures/*/*") for file in folder.glob(pattern))
    below = sorted({str(file.parent) for file in found if _looks_like_a_trace(file)})
    if below:
        return f"; there are some in {', '.join(below[-_BELOW:])}"
    return f": no file ends in {', '.join(_SUFFIXES)}"


def read_traces(
    paths: Iterable[Path],
    nsys_program: str | None = None,
    *,
    detailed: bool = False,
    spans: bool = True,
    confine: Callable[[], object] = lambda: None,
    on_progress: Callable[[ReadProgress], object] = lambda _: None,
) -> list[RankTrace]:
    """The ranks of all files, numbered and in order of their numbers.

    A rank's number is what its file says. Where no file says any, it is the device's, if each device is
    there once, else the place in the order of files and devices. `nsys_program` exports `.nsys-rep` files.
    With `detailed` traces of PyTorch and Nsight Systems have their `detail`; without `spans` those of PyTorch
    lack operators and functions, of which they have most. `confine` is called after that
    program, and before anything is parsed here. `on_progress` is called before each file.

    A trace of a host alone is left out, if others have a GPU.

    Raises `TraceError` with one sentence that names the file, or the rank that two files claim to be.
    """
    files = list(paths)
    traces: list[RankTrace] = []
    with ExitStack() as exports:
        databases: dict[int, Path] = {}
        for number, path in enumerate(files, 1):
            if _is_report(path):
                on_progress(ReadProgress(path, number, len(files), _size_bytes(path), exporting=True))
                databases[number] = _exported(path, nsys_program, exports)
        confine()
        hosts: list[WithoutGpuError] = []
        for number, path in enumerate(files, 1):
            on_progress(ReadProgress(path, number, len(files), _size_bytes(path)))
            try:
                read = _read(path, databases.get(number), detailed=detailed, spans=spans)
            except WithoutGpuError as error:
                hosts.append(error)
                continue
            notes = [f"An earlier window of this rank is in {one}." for one in _beside(path, files)]
            traces += [replace(one, notes=(*one.notes, *notes)) for one in read] if notes else read
    if hosts and not traces:
        raise hosts[0]
    if hosts:
        left_out = [f"A trace is left out: {error}" for error in hosts]
        traces[0] = replace(traces[0], notes=(*traces[0].notes, *left_out))
    if not traces:
        raise TraceError("There is no trace to read: name at least one file.")
    return with_groups(numbered(traces))


def numbered(traces: Sequence[RankTrace]) -> list[RankTrace]:
    """The traces with a rank each, in order; raises `TraceError` when two are the same rank."""
    known = [trace.rank for trace in traces if trace.rank is not None]
    doubles = [rank for rank, count in Counter(known).items() if count > 1]
    if doubles:
        files = [trace.file for trace in traces if trace.rank == doubles[0]]
        raise TraceError(
            f"Rank {doubles[0]} is in more than one trace: {', '.join(files)}; leave out all but one of them."
        )
    if not known:
        devices = [trace.device for trace in traces]
        if None not in devices and len(set(devices)) == len(devices):
            traces = [replace(trace, rank=trace.device) for trace in traces]
        else:
            places = {(trace.file, trace.device): at for at, trace in enumerate(traces)}
            traces = [_at_place(trace, at, places) for at, trace in enumerate(traces)]
    elif len(known) < len(traces):
        unknown = next(trace.file for trace in traces if trace.rank is None)
        raise TraceError(f"{unknown}: the trace has no rank number, while others do; analyze it separately.")
    return sorted(traces, key=lambda trace: trace.rank or 0)


def _at_place(trace: RankTrace, rank: int, places: Mapping[tuple[str, int | None], int]) -> RankTrace:
    """The trace as a rank. Groups of JAX's are devices of its file, which have ranks of their own now."""
    if trace.hlo is None:
        return replace(trace, rank=rank)
    ranks = {device: place for (file, device), place in places.items() if file == trace.file}
    return replace(trace, rank=rank, collectives=renumbered(trace.collectives, ranks))


def _is_report(path: Path) -> bool:
    return path.suffix == ".nsys-rep" and not _start(path).startswith(_NSIGHT_COMPUTE)


def _size_bytes(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        # Whoever reads it says what is wrong.
        return 0


def _exported(path: Path, nsys_program: str | None, exports: ExitStack) -> Path:
    """The database of a report of Nsight Systems, until `exports` ends."""
    # What most captures do not need would only make it start later, here and below.
    from perfd.trace.readers.decompress import exported  # noqa: PLC0415

    return exports.enter_context(exported(path, nsys_program))


def _read(path: Path, database: Path | None, *, detailed: bool, spans: bool) -> list[RankTrace]:
    if database is not None:
        return nsys_reader.read(database, shown_as=str(path), detailed=detailed)
    start = _start(path)
    if start.startswith(_NSIGHT_COMPUTE):
        raise TraceError(f"{path}: this is a report of Nsight Compute; `perfd roofline --ncu` reads it.")
    if path.name.endswith(_XPLANE):
        from perfd.trace.readers.xplane import xplane_reader  # noqa: PLC0415

        return xplane_reader.read(path)
    if start.startswith(_SQLITE):
        return nsys_reader.read(path, detailed=detailed)
    if start.startswith(_GZIP):
        from perfd.trace.readers.decompress import database_bytes, unpacked, unpacked_start  # noqa: PLC0415

        if unpacked_start(path, len(_SQLITE)).startswith(_SQLITE):
            with unpacked(path, database_bytes(path)) as copy:
                return nsys_reader.read(copy, shown_as=str(path), detailed=detailed)
        return _chrome(path, detailed=detailed, spans=spans)
    if path.suffix == ".gz":
        raise TraceError(f"{path}: the name ends in .gz, but the file is not compressed by gzip.")
    if path.suffix in {".sqlite", ".db"}:
        raise TraceError(f"{path}: not an SQLite file.")
    return _chrome(path, detailed=detailed, spans=spans)


def _chrome(path: Path, *, detailed: bool, spans: bool) -> list[RankTrace]:
    from perfd.trace.readers import kineto_reader  # noqa: PLC0415

    return kineto_reader.read(path, detailed=detailed, spans=spans)


def _start(path: Path) -> bytes:
    try:
        if stat.S_ISFIFO(path.stat().st_mode):
            # Readers seek, and a pipe without a writer blocks forever.
            raise TraceError(f"{path}: this is a pipe; write the trace to a file first.")
        with path.open("rb") as file:
            start = file.read(len(_SQLITE))
    except FileNotFoundError as error:
        raise TraceError(f"{path} does not exist: check the path.") from error
    except OSError as error:
        raise TraceError(f"{path}: cannot be read: {error.strerror or error}.") from error
    if not start:
        raise TraceError(f"{path}: the file is empty; copy it again, or capture again.")
    return start

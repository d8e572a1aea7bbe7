"""The metric files of a job's processes: those that they hold open, and those below their folders."""

from __future__ import annotations

import contextlib
import os
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path

from perfd.clock import Clock
from perfd_collectors.ranks.processes import ProcessTable
from perfd_collectors.training_log.job_output import FoundFiles, is_written, own_name
from perfd_collectors.training_log.metric_files import is_metric_file

LOOK_EVERY_S = (3.0, 60.0)
"""Between two looks: at first, and at most. One at 8,000 descriptors takes some 50 ms."""
_LONGER_RATIO = 0.1
"""Of the time since the first look."""
MOST_FILES = 16
"""Of a job on one node: each rank of eight may have a logger or two."""
_MOST_DESCRIPTORS = 1024
"""Of a process; a rank has a few hundred."""
_MOST_ENTRIES = 4000
"""Of files and folders below a job's folders, nearest first: loggers write near the top."""
_MOST_DEPTH = 5
"""`saves/MODEL/lora/sft/runs` is as deep."""
_NOT_LOGS = frozenset({"site-packages", "node_modules", "__pycache__", "proc", "sys", "dev"})
_FOLDER_OPTION = re.compile(
    r"--(?:output|logging|log|save|tensorboard|default[_-]root|tb[_-]log|wandb|run)[_-](?:dir|path)"
)
_FOLDER_VARIABLES = (b"TENSORBOARD_LOGGING_DIR=", b"WANDB_DIR=")
_NAMED = frozenset({"trainer_log.jsonl"})
"""LLaMA-Factory's, which is closed between two writes."""
_WRITER = re.compile(r"events\.out\.tfevents\.\d+\..+\.(\d+)\.\d+(?:\.v2)?")
"""An event file's name has the process that writes it, except that of tensorboardX."""
_MOST_ARGUMENT_BYTES = 1 << 16
"""How much of a command line is searched for folders."""


class JobFiles(FoundFiles):
    """Finds metric files of processes, and keeps those found while they exist.

    TensorBoard's writer and Lightning's close their files between two writes. So what counts besides open
    files is below a working directory, or a folder that an argument names, is newer than the process, and
    names no other process as its writer.
    """

    def __init__(self, proc: Path, processes: Callable[[], Iterable[Path]], clock: Clock) -> None:
        super().__init__(clock)
        self._table = ProcessTable(proc)
        self._processes = processes
        self._began_s: float | None = None

    def _pause_s(self, now_s: float) -> float:
        if self._began_s is None:
            self._began_s = now_s
        soonest_s, latest_s = LOOK_EVERY_S
        return min(latest_s, max(soonest_s, (now_s - self._began_s) * _LONGER_RATIO))

    def _look(self) -> None:
        writers: set[str] = set()
        folders: dict[Path, int] = {}
        # A process may end at any moment.
        with contextlib.suppress(OSError):
            for process in self._processes():
                writers.add(process.name)
                with contextlib.suppress(OSError):
                    for name, link in _open_files(process):
                        if name not in self._found:
                            self._keep(name, own_name(name, link))
                    began_unix_ns = self._began_unix_ns(process)
                    if began_unix_ns is not None:
                        for folder in _folders(process):
                            folders[folder] = min(began_unix_ns, folders.get(folder, began_unix_ns))
        for folder, began_unix_ns in folders.items():
            for path in _files_below(folder, began_unix_ns):
                writer = _WRITER.fullmatch(path.name)
                if str(path) not in self._found and (writer is None or writer[1] in writers):
                    self._keep(str(path), path)

    def _keep(self, name: str, path: Path) -> None:
        if len(self._found) < MOST_FILES:
            self._found[name] = path

    def _began_unix_ns(self, process: Path) -> int | None:
        stat = self._table.stat(int(process.name))
        return None if stat is None else self._table.started_unix_ns(stat.start_ticks)


def _open_files(process: Path) -> Iterator[tuple[str, Path]]:
    """Names and descriptors of the metric files that a process writes to."""
    with os.scandir(process / "fd") as entries:
        for entry in islice(entries, _MOST_DESCRIPTORS):
            with contextlib.suppress(OSError):
                link = Path(entry.path)
                name = str(link.readlink())
                if (is_metric_file(name) or name.endswith(".jsonl")) and is_written(process, link):
                    yield name, link


def _folders(process: Path) -> Iterator[Path]:
    """The working directory of a process, and the folders that its arguments name for its output."""
    working = (process / "cwd").readlink()
    yield working
    with (process / "cmdline").open("rb") as file:
        words = file.read(_MOST_ARGUMENT_BYTES).decode("utf-8", "replace").split("\0")
    for word, following in zip(words, [*words[1:], ""], strict=True):
        option, equals, value = word.partition("=")
        if _FOLDER_OPTION.fullmatch(option) and (value or following):
            yield working / (value if equals else following)
    for variable in (process / "environ").read_bytes().split(b"\0"):
        if variable.startswith(_FOLDER_VARIABLES):
            yield working / os.fsdecode(variable.partition(b"=")[2])


def _files_below(folder: Path, since_unix_ns: int) -> Iterator[Path]:
    """Metric files that were written since a time; no link is followed."""
    waiting = deque([(folder, 0)])
    left = _MOST_ENTRIES
    while waiting and left > 0:
        here, depth = waiting.popleft()
        with contextlib.suppress(OSError), os.scandir(here) as entries:
            for entry in islice(entries, left):
                left -= 1
                if entry.is_dir(follow_symlinks=False):
                    if depth < _MOST_DEPTH and entry.name not in _NOT_LOGS and entry.name[0] != ".":
                        waiting.append((Path(entry.path), depth + 1))
                elif entry.name in _NAMED or is_metric_file(entry.name):
                    status = entry.stat(follow_symlinks=False)
                    if status.st_mtime_ns >= since_unix_ns:
                        yield Path(entry.path)

"""The `slurm_jobs` collector: the output, owner and end of every job that SLURM starts on the node."""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from perfd.collector import Collector, CollectorSpec, OnUnavailable, Options, Settings
from perfd.errors import SandboxError, Unavailable, reason_of
from perfd.model import JobOrigin, Record, job_end, job_origin
from perfd_collectors.ranks.environment import parse_environ
from perfd_collectors.training_log.collector import TrainingLogOptions
from perfd_collectors.training_log.collector import create as create_training_log
from perfd_collectors.training_log.job_output import JobProcesses

_REPEAT_EVERY_S = 30.0
"""How often the owners of jobs are repeated, for aggregators that start later."""
_END = ".end"
_MOST_BYTES = 65_536
"""Of a file of the Prolog or Epilog: a list of 16,384 nodes is shorter."""
_MOST_JOBS = 256
"""On one node: each may have a process that parses its output."""
_VARIABLE = re.compile(r"[A-Z][A-Z0-9_]{0,63}")
_NUMBER = re.compile(r"[0-9]{1,10}")
_FROM_PROCESSES = ("SLURM_JOB_NAME", "SLURM_JOB_ACCOUNT")
"""What slurmd does not pass to the Prolog."""
_ARRAY = ("SLURM_ARRAY_JOB_ID", "SLURM_ARRAY_TASK_ID")


class SlurmJobsOptions(Options, frozen=True):
    """Where Prolog and Epilog write about jobs."""

    directory: str = "/var/lib/perfd/slurm"
    """`PERFD_STATE` of slurm.sh; what counts is `NODE/jobs` in it."""
    framework: str | None = None
    """As in the collector `training_log`."""
    patterns: tuple[str, ...] = ()
    """As in the collector `training_log`."""


class _Job:
    """A job on this node, and the reader of its output once one of its processes was seen."""

    def __init__(self, entry: JobEntry, options: SlurmJobsOptions, settings: Settings) -> None:
        self.entry = entry
        self._options = options
        self._settings = replace(settings, ending=threading.Event(), printed=None)
        self._processes = JobProcesses(job=entry.number, uid=entry.uid)
        self._log: Collector | None = None
        self.known = False
        """Whether one of its processes was seen, which says what it is called."""
        self.origin_due_s = float("-inf")

    @property
    def origin(self) -> JobOrigin:
        return job_origin(self.entry.name, self.entry.environ)

    def records(self) -> Sequence[Record]:
        """What it printed since the last call; raises `SandboxError`."""
        if not self.known:
            self._find()
        return () if self._log is None else self._log.collect()

    def last_records(self) -> Sequence[Record]:
        """What it printed, to the end."""
        self._settings.ending.set()
        # What cannot be parsed does not hide how the job ended.
        with contextlib.suppress(SandboxError):
            return self.records()
        return ()

    def close(self) -> None:
        if self._log is not None:
            self._log.close()

    def _find(self) -> None:
        for process in list(self._processes.folders(self._settings.proc)):
            # It may end at any moment.
            with contextlib.suppress(OSError):
                self.entry = self.entry.completed_by(parse_environ((process / "environ").read_bytes()))
                self.known = True
                if self.entry.log != "none":
                    settings = replace(self._settings, job=self.entry.name)
                    self._log = create_training_log(self._log_options(), settings)
                return

    def _log_options(self) -> TrainingLogOptions:
        entry, options = self.entry, self._options
        printed = entry.log == "stdout"
        return TrainingLogOptions(
            paths=() if printed else (entry.log,),
            job_output=entry.number if printed else None,
            job_output_uid=entry.uid,
            framework=options.framework,
            patterns=options.patterns,
        )


class SlurmJobsCollector:
    """Reads each job by itself: one whose output ends its parser costs the others nothing."""

    def __init__(self, options: SlurmJobsOptions, settings: Settings) -> None:
        self._options = options
        self._settings = settings
        self._folder = Path(options.directory) / settings.node / "jobs"
        self._booted_unix_s = _booted_unix_s(settings.proc)
        self._jobs: dict[str, _Job] = {}
        self._ended: set[str] = set()
        """Files of jobs whose end was reported, which are deleted once the agent has taken that; and of jobs
        from before the machine's last start, whose Epilog never ran."""

    def collect(self) -> Sequence[Record]:
        """Records of what jobs printed since the last call, of their owners, and of those that ended."""
        names = [name for name in self._names() if name not in self._ended]
        self._delete()
        for name in self._jobs.keys() - set(names):
            self._jobs.pop(name).close()
        for name in names:
            if name not in self._jobs and len(self._jobs) < _MOST_JOBS and (entry := self._read(name)):
                self._jobs[name] = _Job(entry, self._options, self._settings)
        records: list[Record] = []
        # A requeued job that starts here again has ended before.
        for name, end in [(name, end) for name in self._jobs if (end := self._text(name + _END)) is not None]:
            job = self._jobs.pop(name)
            records += job.last_records()
            records += [job.origin, job_end(end, job.entry.name, self._settings.clock.unix_ns())]
            job.close()
            self._ended.add(name)
        for job in self._jobs.values():
            with contextlib.suppress(SandboxError):
                records += job.records()
            records += self._origin(job)
        # Who else says of a process that it is a rank of one of these jobs is not believed.
        self._settings.local_jobs.scheduled = {
            job.entry.name: job.entry.uid for job in self._jobs.values() if job.known
        }
        return records

    def close(self) -> None:
        self._delete()
        for job in self._jobs.values():
            job.close()
        self._jobs.clear()

    def _names(self) -> list[str]:
        """Files of jobs, of which each start has its own."""
        try:
            found = sorted(path.name for path in self._folder.iterdir())
        except FileNotFoundError:
            # The Prolog makes it for the first job.
            return []
        except OSError as error:
            raise Unavailable(f"{self._folder} cannot be read: {reason_of(error)}.") from error
        return [name for name in found if not name.startswith(".") and not name.endswith(_END)]

    def _read(self, name: str) -> JobEntry | None:
        with contextlib.suppress(OSError):
            if (self._folder / name).stat().st_mtime < self._booted_unix_s:
                self._ended.add(name)
                return None
        return _parse_entry(self._text(name) or "")

    def _text(self, name: str) -> str | None:
        with contextlib.suppress(OSError), (self._folder / name).open("rb") as file:
            return file.read(_MOST_BYTES).decode("utf-8", "replace")
        return None

    def _delete(self) -> None:
        for name in list(self._ended):
            # What cannot be deleted now is tried again.
            with contextlib.suppress(OSError):
                (self._folder / name).unlink(missing_ok=True)
                (self._folder / (name + _END)).unlink(missing_ok=True)
                self._ended.remove(name)

    def _origin(self, job: _Job) -> list[Record]:
        now_s = self._settings.clock.monotonic_s()
        if not job.known or now_s < job.origin_due_s:
            return []
        job.origin_due_s = now_s + _REPEAT_EVERY_S
        return [job.origin]


def _booted_unix_s(proc: Path) -> float:
    """When the machine was started; 0 where it does not say."""
    with contextlib.suppress(OSError, ValueError):
        lines = (proc / "stat").read_text().splitlines()
        return next((float(line.split()[1]) for line in lines if line.startswith("btime ")), 0.0)
    return 0.0


SPEC = CollectorSpec(
    name="slurm_jobs",
    options=SlurmJobsOptions,
    create=SlurmJobsCollector,
    enabled=False,
    on_unavailable=OnUnavailable.RETRY,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobEntry:
    """One start of a job on this node."""

    number: str
    """SLURM_JOB_ID of its processes."""
    uid: int
    environ: Mapping[str, str]
    """Variables of SLURM, from the Prolog."""
    log: str = "stdout"
    """As `PERFD_LOG` in slurm.sh: `stdout`, `none`, or a file."""

    @property
    def name(self) -> str:
        """What the job is called: its number, or array and index of an array's task."""
        array, task = (self.environ.get(name, "") for name in _ARRAY)
        return f"{array}_{task}" if array and task else self.number

    def completed_by(self, environ: Mapping[str, str]) -> JobEntry:
        """The entry with what only the environment of the job's processes has; the Prolog's values win."""
        found = {name: environ[name] for name in _FROM_PROCESSES if name in environ}
        # A user can set them to anything, and they make the job's name.
        if all(_NUMBER.fullmatch(environ.get(name, "")) for name in _ARRAY):
            found |= {name: environ[name] for name in _ARRAY}
        return replace(self, environ={**found, **self.environ})


def _parse_entry(text: str) -> JobEntry | None:
    """The job of lines `NAME=VALUE`; None without the job's number and user."""
    lines = (line.partition("=") for line in text.splitlines())
    environ = {name: value for name, equals, value in lines if equals and _VARIABLE.fullmatch(name)}
    # Processes of all parts of a heterogeneous job have the number of the first.
    number = environ.get("SLURM_HET_JOB_ID") or environ.get("SLURM_JOB_ID", "")
    uid = environ.get("SLURM_JOB_UID", "")
    if not (_NUMBER.fullmatch(number) and _NUMBER.fullmatch(uid)):
        return None
    return JobEntry(number=number, uid=int(uid), environ=environ, log=environ.get("PERFD_LOG", "none"))

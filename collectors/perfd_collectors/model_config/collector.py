"""The `model_config` collector: what a job's log does not say of its model."""

from __future__ import annotations

import dataclasses
import glob
import math
import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

import msgspec

from perfd.collector import Options, Settings
from perfd.errors import ConfigError
from perfd.file_access import open_as, open_as_owner
from perfd.model import JobDescription, ModelShape, ModelSource, Record
from perfd_collectors.model_config.arguments import ModelArguments, config_files, model_arguments
from perfd_collectors.model_config.hf_config import MAX_BYTES, ModelConfigError, model_shape
from perfd_collectors.model_config.hlo_dump import HloDump, dump_folder
from perfd_collectors.ranks.processes import ProcessTable

_REPEAT_EVERY_S = 30.0
"""How often it is repeated, for aggregators that start after the agent. Chosen, not measured."""
_MAX_ARGUMENTS_BYTES = 1 << 17
"""Read of a command line or an environment."""
_NO_TF32 = "NVIDIA_TF32_OVERRIDE"
"""If this variable is 0, NVIDIA's libraries do not use TF32, whatever the program requests."""
_VARIABLES = ("HOME", "HF_HOME", "HF_HUB_CACHE", "XLA_FLAGS", _NO_TF32)


class ModelConfigOptions(Options, frozen=True):
    """Options of the `model_config` collector; what is set here is described for the agent's own job."""

    file: str | None = None
    """A Hugging Face `config.json`; needs `sequence_length`."""
    sequence_length: int | None = None
    """Tokens of a sequence."""
    tokens_per_step: float | None = None
    """Tokens that all ranks together process in an optimizer step."""
    flops_per_step: float | None = None
    """FLOPs of an optimizer step, forward and backward, of all GPUs together; instead of a shape."""
    precision: str | None = None
    """Data type of the matrix products: `bf16`, `fp16`, `fp8`, `fp32`; selects the peak of MFU."""
    find: bool = True
    """Find a job's `config.json` by the arguments of its processes, and its HLO by `--xla_dump_to`."""


def check_options(options: Mapping[str, str | float]) -> None:
    """Raise `ConfigError` if the collector cannot be made with these options."""
    _by_hand(msgspec.convert(options, ModelConfigOptions), job="")


class ModelConfigCollector:
    """Describes the jobs of which its options, or the arguments of their lowest rank here, say something.

    Raises `ConfigError` for a file that cannot be used.
    """

    def __init__(self, options: ModelConfigOptions, settings: Settings) -> None:
        self._settings = settings
        self._find = options.find
        self._by_hand = _by_hand(options, settings.job)
        self._found: dict[tuple[str, int], JobDescription | None] = {}
        """By job and the process that was read."""
        self._dumps: dict[tuple[str, int], HloDump | None] = {}
        self._table = ProcessTable(settings.proc)
        self._last: Mapping[str, JobDescription] = {}
        self._repeat_due_s = -math.inf

    def collect(self) -> Sequence[Record]:
        now_s = self._settings.clock.monotonic_s()
        described = {description.job: description for description in self._descriptions()}
        due = now_s >= self._repeat_due_s
        if due:
            self._repeat_due_s = now_s + _REPEAT_EVERY_S
        last, self._last = self._last, described
        return [description for job, description in described.items() if due or last.get(job) != description]

    def close(self) -> None:
        """Nothing is held."""

    def _descriptions(self) -> Iterator[JobDescription]:
        processes = self._settings.local_jobs.processes() if self._find else {}
        self._found = {
            key: self._found[key] if key in self._found else self._of_process(*key)
            for key in processes.items()
        }
        self._dumps = {
            key: self._dumps[key] if key in self._dumps else self._dump(*key) for key in processes.items()
        }
        described = {job: description for (job, _), description in self._found.items() if description}
        described |= {} if self._by_hand is None else {self._by_hand.job: self._by_hand}
        for (job, _), dump in self._dumps.items():
            step = None if dump is None else dump.step()
            if step is not None:
                known = described.get(job) or JobDescription(job=job, framework="")
                described[job] = dataclasses.replace(
                    known, hlo_flops_per_step=step.flops, hlo_precision=step.precision
                )
        yield from described.values()

    def _of_process(self, job: str, pid: int) -> JobDescription | None:
        folder = self._settings.proc / str(pid)
        arguments = model_arguments(_words(folder / "cmdline"))
        model = (
            self._shape(arguments, folder, self._settings.local_jobs.uid(job))
            if arguments.trains_all
            else None
        )
        if model is None and arguments.precision is None:
            return None
        source = None if model is None else ModelSource.ARGUMENTS
        return JobDescription(
            job=job, framework="", model=model, model_source=source, precision=arguments.precision
        )

    def _dump(self, job: str, pid: int) -> HloDump | None:
        folder = self._settings.proc / str(pid)
        variables = _variables(folder)
        place = dump_folder(variables.get("XLA_FLAGS", ""), _working_directory(folder))
        process = self._table.stat(pid)
        if place is None or process is None:
            return None
        uid = self._settings.local_jobs.uid(job)
        since_ns = self._table.started_unix_ns(process.start_ticks)
        return HloDump(place, since_ns, partial(_opened, uid=uid), tf32=variables.get(_NO_TF32) != "0")

    def _shape(self, arguments: ModelArguments, folder: Path, uid: int | None) -> ModelShape | None:
        if arguments.model is None or arguments.sequence_length is None:
            return None
        environ = _variables(folder)
        for pattern in config_files(arguments.model, cwd=_working_directory(folder), environ=environ):
            for path in sorted(glob.glob(str(pattern)))[:1]:  # noqa: PTH207  (an absolute pattern)
                try:
                    return model_shape(_read(Path(path), uid), sequence_length=arguments.sequence_length)
                except (OSError, ModelConfigError):
                    continue
        return None


def _by_hand(options: ModelConfigOptions, job: str) -> JobDescription | None:
    model = None
    for name in ("sequence_length", "tokens_per_step", "flops_per_step"):
        value = getattr(options, name)
        if value is not None and not 0 < value < float("inf"):
            raise ConfigError(f"model_config: {name} must be more than 0, not {value}.")
    if options.file is not None:
        if options.sequence_length is None:
            raise ConfigError("A model's config.json needs the length of its sequences: --sequence-length.")
        try:
            model = model_shape(_read(Path(options.file), None), sequence_length=options.sequence_length)
        except OSError as error:
            raise ConfigError(f"Cannot read {options.file}: {error.strerror}.") from error
        except ModelConfigError as error:
            raise ConfigError(f"{options.file}: {error}") from error
    if not (model or options.tokens_per_step or options.flops_per_step or options.precision):
        return None
    return JobDescription(
        job=job,
        framework="",
        model=model,
        model_source=None if model is None else ModelSource.CONFIG,
        precision=options.precision,
        tokens_per_step=options.tokens_per_step,
        flops_per_step=options.flops_per_step,
    )


def _opened(path: Path, uid: int | None) -> int:
    """A descriptor; raises `OSError`."""
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
    return open_as_owner(path) if uid is None else open_as(uid, path, flags)


def _read(path: Path, uid: int | None) -> bytes:
    """At most a byte more than a file may have; raises `OSError`, also if it is not a file."""
    with open(_opened(path, uid), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(0, "it is not a file", str(path))
        return file.read(MAX_BYTES + 1)


def _variables(folder: Path) -> Mapping[str, str]:
    pairs = (word.partition("=") for word in _words(folder / "environ"))
    return {name: value for name, _, value in pairs if name in _VARIABLES}


def _words(path: Path) -> list[str]:
    try:
        with path.open("rb") as file:
            content = file.read(_MAX_ARGUMENTS_BYTES)
    except OSError:
        return []
    return content.decode("utf-8", "replace").rstrip("\0").split("\0")


def _working_directory(folder: Path) -> Path:
    try:
        return (folder / "cwd").readlink()
    except OSError:
        return Path("/")

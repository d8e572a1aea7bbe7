"""Reads `.ncu-rep`, the report of Nsight Compute, by NVIDIA's own Python interface to it.

The module `ncu_report` is a package of that name, and a folder of Nsight Compute; perfd comes without it.
(Source: "Python Report Interface" in Nsight Compute's documentation.)

Its metrics are in base units, nanoseconds and percent, in every report (2023.3 to 2026.3). `IMetric.unit` is
not asked: in a process with numpy, whose C++ library it mixes up with its own, the module that comes with
Nsight Compute 2025.3.1 crashes there.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Protocol, cast

from perfd.errors import TraceError
from perfd.sandbox.named_files import require_bounded
from perfd.trace.roofline.kernel_metrics import KernelMetrics
from perfd.trace.roofline.ncu_csv import base_unit, in_base_units, read_csv, require_known
from perfd.trace.roofline.ncu_names import kernel_of

_MAGIC = b"NVR\0"
"""How such a report begins."""
_MAX_BYTES = 1 << 30
"""NVIDIA's reader holds a report in memory, and the CSV of a kernel has some kilobytes."""


class _Metric(Protocol):
    def as_double(self) -> float | None: ...


class _Action(Protocol):
    """What was profiled: a kernel or a graph."""

    def name(self) -> str | None: ...
    def metric_names(self) -> Iterable[str]: ...
    def metric_by_name(self, name: str) -> _Metric | None: ...


class _Range(Protocol):
    def num_actions(self) -> int: ...
    def action_by_idx(self, index: int) -> _Action: ...


class _Report(Protocol):
    def num_ranges(self) -> int: ...
    def range_by_idx(self, index: int) -> _Range: ...


class _Interface(Protocol):
    """What is used of the module."""

    def load_report(self, file_name: str) -> _Report: ...


def is_report(path: Path) -> bool:
    """Whether a file is a report of Nsight Compute; False for one that cannot be read."""
    try:
        with path.open("rb") as file:
            return file.read(len(_MAGIC)) == _MAGIC
    except OSError:
        return False


def read_ncu(path: Path) -> list[KernelMetrics]:
    """The kernels of a report or of its CSV, in the order in which they ran.

    Raises `TraceError`, naming the file, when it is neither, is cut or holds no kernel, and for a report
    where `ncu_report` is missing; `PerfdError` when it is too large, a pipe or a device.
    """
    try:
        require_bounded(path, _MAX_BYTES, "Nsight Compute's report or CSV")
    except OSError as error:
        raise TraceError(f"{path}: cannot be read: {error.strerror or error}.") from error
    if not is_report(path):
        return read_csv(path)
    interface = _interface(path)
    try:
        kernels = [_kernel(path, action) for action in _actions(interface.load_report(str(path)))]
    except (RuntimeError, ValueError, OSError) as error:
        raise TraceError(f"{path}: Nsight Compute's reader cannot read the report: {error}.") from error
    if not kernels:
        raise TraceError(
            f"{path}: the report holds no kernel, or it is cut; copy it again, or profile again."
        )
    require_known(path, kernels, ())
    return kernels


def _interface(path: Path) -> _Interface:
    try:
        return cast("_Interface", importlib.import_module("ncu_report"))
    except ImportError as error:
        raise TraceError(
            f"{path}: Nsight Compute's report is read by the module ncu_report: install `perfd[ncu]`, or put"
            " extras/python of Nsight Compute on PYTHONPATH, or make a CSV with"
            f" `ncu --import REPORT --csv --page raw --print-units base` ({error})."
        ) from error


def _actions(report: _Report) -> Iterator[_Action]:
    for at in range(report.num_ranges()):
        profiled = report.range_by_idx(at)
        for number in range(profiled.num_actions()):
            yield profiled.action_by_idx(number)


def _kernel(path: Path, action: _Action) -> KernelMetrics:
    names = list(action.metric_names())
    if not names:
        # What the end of a file is missing comes without a name and without numbers.
        raise TraceError(
            f"{path}: the report is cut: a kernel has no metrics; copy it again, or profile again."
        )

    def value(name: str) -> float | None:
        metric = action.metric_by_name(name)
        number = metric.as_double() if metric is not None else None
        return None if number is None else in_base_units(number, base_unit(name))

    return kernel_of(action.name() or "", names, value)

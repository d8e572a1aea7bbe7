"""A stand-in for NVIDIA's `ncu_report`, for tests without that package: reads what `write_report` wrote.

The names and what they return are those of "Python Report Interface" in Nsight Compute's documentation, as
2026.3.1 behaves with reports of 2023.3: a metric that is not there is None, and what the end of a file is
missing is an action without a name and without metrics.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

Kernel = tuple[str | None, Mapping[str, float | None]]
"""A name, and metrics in base units."""

_MAGIC = b"NVR\0"


def write_report(path: Path, ranges: Sequence[Sequence[Kernel]]) -> Path:
    """A file that begins as a report does and holds these kernels, by range."""
    path.write_bytes(_MAGIC + json.dumps(ranges).encode())
    return path


def load_report(file_name: str) -> Report:
    """The report in a file."""
    content = Path(file_name).read_bytes().removeprefix(_MAGIC)
    try:
        return Report(json.loads(content))
    except ValueError as error:
        raise RuntimeError("Failed to load report") from error


class Metric:
    """`IMetric`."""

    def __init__(self, value: float | None) -> None:
        self._value = value

    def as_double(self) -> float | None:
        """Its value; None where it has none."""
        return self._value


class Action:
    """`IAction`."""

    def __init__(self, name: str | None, metrics: Mapping[str, Any]) -> None:
        self._name = name
        self._metrics = metrics

    def name(self) -> str | None:
        """The kernel's."""
        return self._name

    def metric_names(self) -> Sequence[str]:
        """All metrics that it has."""
        return tuple(self._metrics)

    def metric_by_name(self, name: str) -> Metric | None:
        """One of them."""
        return Metric(self._metrics[name]) if name in self._metrics else None


class Range:
    """`IRange`."""

    def __init__(self, actions: Sequence[Any]) -> None:
        self._actions = actions

    def num_actions(self) -> int:
        """How many actions it has."""
        return len(self._actions)

    def action_by_idx(self, index: int) -> Action:
        """One of them."""
        return Action(*self._actions[index])


class Report:
    """`IContext`."""

    def __init__(self, ranges: Sequence[Any]) -> None:
        self._ranges = ranges

    def num_ranges(self) -> int:
        """How many ranges it has."""
        return len(self._ranges)

    def range_by_idx(self, index: int) -> Range:
        """One of them."""
        return Range(self._ranges[index])

"""Finds the ranks of jobs on this node, and their GPUs."""

from __future__ import annotations

from perfd.collector import CollectorSpec, Settings
from perfd.model import RankColumn
from perfd_collectors.nvml.nvml_api import load
from perfd_collectors.ranks.cgroup import CgroupIdentity, parse_cgroup
from perfd_collectors.ranks.collector import RanksCollector, RanksOptions
from perfd_collectors.ranks.columns import COLUMNS
from perfd_collectors.ranks.environment import RankIdentity, parse_environ, resolve_rank
from perfd_collectors.ranks.host_waits import COLUMNS as HOST_COLUMNS

__all__ = [
    "SPEC",
    "CgroupIdentity",
    "RankIdentity",
    "RanksCollector",
    "RanksOptions",
    "parse_cgroup",
    "parse_environ",
    "resolve_rank",
]


def _create(options: RanksOptions, settings: Settings) -> RanksCollector:
    return RanksCollector(load(), options, settings)


SPEC = CollectorSpec(
    name="ranks",
    options=RanksOptions,
    create=_create,
    interval_s=5.0,
    columns=(*COLUMNS, *HOST_COLUMNS),
    provides=tuple(RankColumn(column.name) for column in HOST_COLUMNS),
)

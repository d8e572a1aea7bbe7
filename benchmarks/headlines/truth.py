"""What is true of recordings: a table of those that ship and of the shared ones, or a file beside a run."""

from __future__ import annotations

import json
import math
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_TABLE = Path(__file__).with_name("truth.toml")
_KINDS_OF_FAULT = {
    "none": ("none", "compute_bound", "memory_bound", "launch_bound", "host_bound", "communication"),
    "slow_loaders": ("data_loading", "late_hosts", "host_bound", "launch_bound"),
    "heavy_last_stage": ("pipeline_imbalance", "pipeline_bubble"),
    "no_p2p": ("slow_link", "communication"),
}
"""Of the faults of `benchmarks.gpu.faults` for which no rank is to blame."""
_KINDS_OF_RANK = ("straggler", "data_loading")
_HEALTHY = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """A stretch of a run in which one fault was switched on, or none."""

    fault: str
    """`healthy`, or what was done."""
    begin_unix_s: float
    end_unix_s: float
    ranks: frozenset[int]
    lost_ratio: float | None
    """Of a step in it, what steps were longer than those around it."""

    @property
    def lost_s(self) -> float:
        """What it cost the job."""
        return max(0.0, self.lost_ratio or 0.0) * (self.end_unix_s - self.begin_unix_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Truth:
    """What a verdict about one recording may be."""

    kinds: frozenset[str]
    """The kinds that the headline may have at the end."""
    ranks: frozenset[int] = frozenset()
    """Those to blame."""
    hidden_ranks: frozenset[int] = frozenset()
    """With a fault that costs next to nothing: they need not be named."""
    since_step: int = 0
    """The first step with the fault."""
    cost_ratio: float | None = None
    """Of a step with the fault, what was measured to be lost by it."""
    phases: Sequence[Phase] = ()
    """Of a run with several faults, in order."""
    until_unix_s: float = math.inf
    """What a headline may be later is not known: the job was ended soon after another fault had begun, or it
    was killed after its last phase, as a job that hangs is."""

    @property
    def changes(self) -> int:
        """How often the headline may change once the job is steady."""
        if self.phases:
            # A headline for each fault, and one after it.
            return sum(phase.fault != "healthy" for phase in self.phases) * 2
        return 1 if self.since_step else 0


def truth_of(recording: Path) -> Truth | None:
    """By the table, or by what lies beside a run of the fault benchmark; None where nobody knows."""
    switched, beside = recording.parent / "truth.json", recording.parent / "case.json"
    if switched.is_file():
        return _of_phases(json.loads(switched.read_text()))
    if beside.is_file():
        return _of_run(json.loads(beside.read_text()), recording.parent / "times.json")
    entry = tomllib.loads(_TABLE.read_text()).get(recording.name)
    return None if entry is None else _of_entry(entry)


def _of_phases(document: dict[str, Any]) -> Truth:
    phases = [
        Phase(
            fault=entry["phase"]["kind"],
            begin_unix_s=entry["begin_unix_s"],
            end_unix_s=entry["end_unix_s"],
            ranks=frozenset(entry["phase"]["ranks"]),
            lost_ratio=entry["lost_ratio"],
        )
        for entry in document["phases"]
    ]
    last = document["phases"][-1]["phase"]
    fault_follows = last["kind"] == "healthy" and len(document["steps_s"]) > last["last_step"]
    unknown = fault_follows or bool(document.get("killed"))
    until_unix_s = phases[-1].end_unix_s if unknown else math.inf
    return Truth(kinds=frozenset(), phases=phases, until_unix_s=until_unix_s)


def _of_entry(entry: dict[str, Any]) -> Truth:
    return Truth(
        kinds=frozenset(entry["kinds"]),
        ranks=frozenset(entry.get("ranks", ())),
        hidden_ranks=frozenset(entry.get("hidden_ranks", ())),
        since_step=entry.get("since_step", 0),
        cost_ratio=entry.get("cost_ratio"),
    )


def _of_run(case: dict[str, Any], times: Path) -> Truth:
    from benchmarks.gpu.fault_runs import cost_ratio_of  # noqa: PLC0415  (it needs psutil, and a table does not)

    fault = case["fault"]
    blameless = fault in _KINDS_OF_FAULT
    slower = cost_ratio_of(times.parent)
    since_step = json.loads(times.read_text())["fault_from"] if fault != _HEALTHY and times.is_file() else 0
    kinds = _KINDS_OF_FAULT[fault] if blameless else _KINDS_OF_RANK
    if case["stages"] > 1:
        kinds = (*kinds, *(("pipeline_bubble", "pipeline_imbalance") if blameless else ()))
    return Truth(
        kinds=frozenset(kinds),
        ranks=frozenset() if blameless else frozenset({case["rank"]}),
        since_step=since_step,
        cost_ratio=None if slower is None else slower / (1 + slower),
    )

"""Errors of hardware that are new since the last look, from the counters that agents send."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from perfd.aggregator.state import NodeState
from perfd.model import GpuColumn, NicColumn, Scope
from perfd.nodes import IncidentKind

PROGRAM_ERRORS = frozenset({"11", "13", "31", "43", "45", "121", "137", "154"})
"""XIDs that programs cause, or that only go with others: those that rules/hardware.yaml leaves out."""
_MEMORY_ERRORS = frozenset({"48", "63", "64", "92", "94", "95"})
_COUNTERS = (
    (Scope.GPU, GpuColumn.ECC_UNCORRECTED.value, IncidentKind.MEMORY_ERROR, "uncorrectable memory errors"),
    (Scope.NIC, NicColumn.LINK_DOWNS.value, IncidentKind.LINK_DOWN, "times down"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class NewErrors:
    """Errors of one kind of a GPU or port that were not there at the last look."""

    kind: IncidentKind
    count: int
    gpu: str = ""
    job: str = ""
    evidence: str = ""


class HardwareCounters:
    """Compares the counters of each node with those of the last look."""

    def __init__(self) -> None:
        self._xids: dict[str, dict[tuple[str, str, str], int]] = {}
        self._counters: dict[tuple[str, str], list[float]] = {}

    def new_errors(self, node: NodeState) -> Iterator[NewErrors]:
        """What is new of a node since the last call. The first reading of a counter is the base."""
        before = self._xids.get(node.name, {})
        self._xids[node.name] = dict(node.hardware_errors)
        for (job, gpu, code), count in node.hardware_errors.items():
            # It counts anew after its agent left and came back.
            known = before.get((job, gpu, code), 0)
            new = count - known if count >= known else count
            if new > 0 and code not in PROGRAM_ERRORS:
                kind = IncidentKind.MEMORY_ERROR if code in _MEMORY_ERRORS else IncidentKind.HARDWARE_ERROR
                what = f"XID {code}" if code else "GPU lost"
                yield NewErrors(
                    kind=kind, count=new, gpu=gpu, job=job, evidence=f"{what} (kernel log, NVML)."
                )
        for scope, column, kind, what in _COUNTERS:
            yield from self._of_counter(node, scope, column, kind, what)

    def keep(self, nodes: Collection[str]) -> None:
        """Forget all nodes but these."""
        self._xids = {node: known for node, known in self._xids.items() if node in nodes}
        self._counters = {key: value for key, value in self._counters.items() if key[0] in nodes}

    def _of_counter(
        self, node: NodeState, scope: Scope, column: str, kind: IncidentKind, what: str
    ) -> Iterator[NewErrors]:
        readings = node.readings.get(scope)
        position = None if readings is None else readings.layout.metrics.position(column)
        if readings is None or position is None or position >= readings.values.shape[1]:
            return
        before, values = self._counters.get((node.name, column)), readings.values[:, position].tolist()
        self._counters[node.name, column] = values
        if before is None or values == before:
            return
        for row, (earlier, now) in enumerate(zip(before, values, strict=False)):
            # NaN, what is not read yet, is greater than nothing.
            if not now > earlier or not math.isfinite(now - earlier):
                continue
            entity, new = readings.layout.entities.known[row], now - earlier
            gpu = entity if scope is Scope.GPU else ""
            count = int(min(new, 1e9))
            where = "" if gpu else f"{entity}: "
            sentence = f"{where}{count} {what} ({column})."
            yield NewErrors(kind=kind, count=count, gpu=gpu, evidence=sentence)

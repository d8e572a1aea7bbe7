"""How long the members of each of many groups took."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from perfd.trace.model.intervals import Ns
from perfd.trace.tables.trace_table import Cell, named


@dataclass(frozen=True, slots=True, kw_only=True)
class DurationSpread:
    """Durations of one group. The standard deviation is that of a sample, and 0 of one member."""

    group: int
    count: int
    total_ns: int
    min_ns: int
    median_ns: float
    p95_ns: float
    max_ns: int
    deviation_ns: float

    @property
    def mean_ns(self) -> float:
        """Total over count."""
        return self.total_ns / self.count

    def cells(self, total_ns: int) -> tuple[Cell, ...]:
        """As in `COLUMNS`, with the share of a total."""
        return (
            self.total_ns / total_ns if total_ns else None,
            self.total_ns / 1e9,
            self.count,
            self.mean_ns / 1e9,
            self.median_ns / 1e9,
            self.min_ns / 1e9,
            self.p95_ns / 1e9,
            self.max_ns / 1e9,
            self.deviation_ns / 1e9,
        )


COLUMNS = named("share_ratio total_s count mean_s median_s min_s p95_s max_s deviation_s")


def distributions(groups: Ns, durations_ns: Ns) -> list[DurationSpread]:
    """One for each group that occurs, that with the most time first."""
    if not len(groups):
        return []
    order = np.lexsort((durations_ns, groups))
    groups, durations = groups[order], durations_ns[order]
    first = np.flatnonzero(np.concatenate(([True], groups[1:] != groups[:-1])))
    found = []
    for low, high in zip(first.tolist(), [*first.tolist()[1:], len(groups)], strict=True):
        part = durations[low:high]
        count = high - low
        found.append(
            DurationSpread(
                group=int(groups[low]),
                count=count,
                total_ns=int(part.sum()),
                min_ns=int(part[0]),
                median_ns=float(part[(count - 1) // 2] + part[count // 2]) / 2,
                p95_ns=float(np.quantile(part, 0.95)),
                max_ns=int(part[-1]),
                deviation_ns=float(part.std(ddof=1)) if count > 1 else 0.0,
            )
        )
    return sorted(found, key=lambda one: -one.total_ns)

"""What a node's InfiniBand and RoCE ports carry, by what its collectors read."""

from __future__ import annotations

import numpy as np

from perfd.aggregator.state.node_state import NodeState
from perfd.model import NicColumn, Scope

_COLUMNS = (NicColumn.LINK_UP, NicColumn.SPEED)


def ports_bytes_per_s(node: NodeState) -> float | None:
    """What all ports that are up send at most together; None when none is known.

    Other interfaces are left out: which of them NCCL would use is unknown.
    """
    readings = node.readings.get(Scope.NIC)
    if readings is None or not {*_COLUMNS} <= set(readings.layout.metrics.known):
        return None
    ports = [at for at, name in enumerate(readings.layout.entities.known) if "/" in name]
    columns = [readings.layout.metrics.known.index(name) for name in _COLUMNS]
    up, speed = readings.values[np.ix_(ports, columns)].T
    total = float(speed[(up == 1) & (speed > 0)].sum())
    return total or None

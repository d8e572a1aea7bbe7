"""What tables need of an export of Nsight Systems, beside what every analysis does."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from perfd.trace.model.intervals import Ns
from perfd.trace.model.trace_detail import NamedCalls, TraceDetail
from perfd.trace.readers.nsys.nsys_tables import Tables

_RUNTIME, _OS_RUNTIME = "CUPTI_ACTIVITY_KIND_RUNTIME", "OSRT_API"
_LIBRARIES = ("CUDNN_EVENTS", "CUBLAS_EVENTS")
_PROCESS_BITS, _PROCESS_MASK = 24, 0xFFFFFF
"""Where a global process id has the process."""


class NsysDetail:
    """Of one export; asked for each process."""

    def __init__(self, tables: Tables) -> None:
        sizes = tables.operation_sizes()
        self._size_bytes = sizes[:, 0]
        used, shapes = np.unique(sizes[:, 1:], axis=0, return_inverse=True)
        known = used[:, 0] >= 0 if len(used) else np.zeros(0, dtype=np.bool_)
        self._shape_names = [
            "x".join(map(str, row[:3])) + " " + "x".join(map(str, row[3:])) for row in used.tolist()
        ]
        self._shapes = np.where(known[shapes.ravel()], shapes.ravel(), -1)
        self._api = tables.named_calls(_RUNTIME)
        calls, names = tables.named_calls(_OS_RUNTIME)
        # The beginning of a chain of calls is a row too, without a name and a duration.
        self._os_calls = calls[calls[:, 1] > calls[:, 0]], names
        self._libraries = [tables.named_calls(table) for table in _LIBRARIES]
        self._priorities = tables.target.stream_priorities()
        self._multiprocessors = tables.target.multiprocessors()

    def of(self, process: int, device: int, rows: Ns) -> TraceDetail:
        """Of a process' operations on a device in these rows of the tables."""
        pid = process >> _PROCESS_BITS & _PROCESS_MASK
        return TraceDetail(
            size_bytes=self._size_bytes[rows],
            launch_shape=self._shapes[rows],
            launch_shapes=self._shape_names,
            api=_calls_of(*self._api, process),
            os_calls=_calls_of(*self._os_calls, process),
            library_calls=_joined([_calls_of(*one, process) for one in self._libraries]),
            stream_priorities={
                stream: priority for (of, stream), priority in self._priorities.items() if of == pid
            },
            multiprocessors=self._multiprocessors.get(device),
        )


def _calls_of(rows: Ns, names: Sequence[str], process: int) -> NamedCalls:
    mine = rows[rows[:, 2] == process]
    return NamedCalls(start_ns=mine[:, 0], end_ns=mine[:, 1], name=mine[:, 3], names=names)


def _joined(parts: Sequence[NamedCalls]) -> NamedCalls:
    names = [name for part in parts for name in part.names]
    before = np.cumsum([0, *(len(part.names) for part in parts)])
    return NamedCalls(
        start_ns=np.concatenate([part.start_ns for part in parts]),
        end_ns=np.concatenate([part.end_ns for part in parts]),
        name=np.concatenate([part.name + first for part, first in zip(parts, before, strict=False)]),
        names=names,
    )

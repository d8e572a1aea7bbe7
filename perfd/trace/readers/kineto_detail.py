"""Collects what tables need of a Kineto trace, beside what every analysis does."""

from __future__ import annotations

from array import array

import numpy as np

from perfd.trace.model.intervals import Ns
from perfd.trace.model.trace_detail import NamedCalls, TraceDetail, no_named_calls
from perfd.trace.readers.chrome_json import ChromeEvent
from perfd.trace.readers.detailed_events import SizedArgs, whole
from perfd.trace.readers.kineto_columns import Times
from perfd.trace.readers.kineto_events import CALL_CATEGORIES, GPU_CATEGORIES, KinetoEvents
from perfd.trace.readers.kineto_host_spans import HostSpanEvents

_NO_SIZES = SizedArgs()


class DetailedKinetoEvents(KinetoEvents):
    """Takes events that were read as `SizedEvent`, or with `spans` as `DetailedEvent`."""

    def __init__(self, *, spans: bool) -> None:
        super().__init__()
        self._spans = HostSpanEvents() if spans else None
        self._sizes = array("q")
        self._shapes = array("q")
        self._shape_names: dict[str, int] = {}
        self._api_times = Times()
        self._api_names: dict[str, int] = {}
        self._api = array("q")

    def add(self, event: ChromeEvent) -> None:
        super().add(event)
        if event.ph != "X" or event.cat is None:
            return
        if event.cat in GPU_CATEGORIES:
            args = event.args if isinstance(event.args, SizedArgs) else _NO_SIZES
            size = whole(args.copied_bytes)
            self._sizes.append(-1 if size is None else max(-1, size))
            shape = _launch_shape(args)
            self._shapes.append(
                -1 if shape is None else self._shape_names.setdefault(shape, len(self._shape_names))
            )
        elif event.cat in CALL_CATEGORIES:
            self._api_times.append(event)
            self._api.append(self._api_names.setdefault(event.name, len(self._api_names)))
        elif self._spans is not None:
            self._spans.add(event, self.thread_of(event))

    def keeps(self, event: ChromeEvent) -> bool:
        if self._spans is None:
            return super().keeps(event)
        return event.ph == "X" and event.cat is not None

    def _all_times(self) -> tuple[Times, ...]:
        own = (self._api_times,) if self._spans is None else (self._api_times, self._spans.times)
        return (*super()._all_times(), *own)

    def detail(self, rows: Ns) -> TraceDetail:
        """Of the operations in these rows."""
        start, end, valid = self._api_times.ns()
        return TraceDetail(
            size_bytes=np.array(self._sizes, dtype=np.int64)[rows],
            launch_shape=np.array(self._shapes, dtype=np.int64)[rows],
            launch_shapes=list(self._shape_names),
            api=NamedCalls(
                start_ns=start[valid],
                end_ns=end[valid],
                name=np.array(self._api, dtype=np.int64)[valid],
                names=list(self._api_names),
            ),
            os_calls=no_named_calls(),
            spans=None if self._spans is None else self._spans.spans(),
        )


def _launch_shape(args: SizedArgs) -> str | None:
    sizes = [args.grid, args.block]
    if not all(isinstance(one, list) and len(one) == 3 for one in sizes):
        return None
    return " ".join("x".join(str(part)[:12] for part in one) for one in sizes)

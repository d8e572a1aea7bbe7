"""Collects what the events of a Kineto trace say, column by column."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

from perfd.trace.model.intervals import Flags, Ns
from perfd.trace.model.kernel_classes import call_kind, kernel_kind
from perfd.trace.model.operation_kinds import HostCallKind, OperationKind
from perfd.trace.model.rank_trace import HostCalls, Message, Phase, calls_of
from perfd.trace.readers.chrome_json import Args, ChromeEvent
from perfd.trace.readers.kineto_columns import Columns, Times
from perfd.trace.readers.nccl_messages import HostMessage

_KERNEL, _MEMORY, _CALL, _ANNOTATION, _HOST_OPERATION, _OVERHEAD, _SPAN = range(7)
_CATEGORIES = {
    spelling: code
    for names, code in (
        (("kernel",), _KERNEL),
        (("gpu_memcpy", "gpu_memset", "memcpy", "memset"), _MEMORY),
        (("cuda_runtime", "cuda_driver", "runtime", "driver", "hip_runtime"), _CALL),
        (("user_annotation",), _ANNOTATION),
        (("cpu_op", "operator"), _HOST_OPERATION),
        (("overhead",), _OVERHEAD),
        (("trace",), _SPAN),
    )
    for name in names
    for spelling in (name, name.capitalize())
}
_RANGES_OF_PYTORCH = ("ProfilerStep", "enumerate(DataLoader)#", "Optimizer.step#", "Optimizer.zero_grad#")
"""Ranges that are operators in the oldest traces, as of torch 1.8."""
GPU_CATEGORIES = frozenset(name for name, code in _CATEGORIES.items() if code in {_KERNEL, _MEMORY})
CALL_CATEGORIES = frozenset(name for name, code in _CATEGORIES.items() if code == _CALL)


class KinetoEvents:
    """Takes the events as they come; asked for their columns when all are through."""

    def __init__(self) -> None:
        self.names: dict[str, int] = {}
        self.call_names: dict[str, int] = {}
        self.host_operations = 0
        """How many operators of PyTorch the host ran."""
        self.collectives: list[tuple[int, Args]] = []
        """Rows of the operations, and what was written on them."""
        self._threads: dict[int | str | None, int] = {}
        self._operation_times = Times()
        self._operations = Columns("kind", "name", "stream", "correlation", "device")
        self._call_times = Times()
        self._calls = Columns("kind", "correlation", "thread", "name")
        self._overhead = Times()
        self._recorded = Times()
        self._range_times = Times()
        self._ranges: list[tuple[str, int]] = []
        self._message_times = Times()
        self._messages: list[tuple[int, Message]] = []

    def add(self, event: ChromeEvent) -> None:
        """Take one event that has a category."""
        if event.ph != "X" or event.cat is None:
            return
        code = _CATEGORIES.get(event.cat)
        if code is None:
            return
        if code == _HOST_OPERATION:
            self._add_host_operation(event)
        elif code == _CALL:
            self._add_call(event)
        elif code in {_KERNEL, _MEMORY}:
            self._add_operation(event, kernel_kind(event.name) if code == _KERNEL else OperationKind.MEMORY)
        elif code == _ANNOTATION:
            self._add_range(event)
        elif code == _OVERHEAD:
            self._overhead.append(event)
        elif event.name.startswith("PyTorch Profiler"):
            self._recorded.append(event)

    @property
    def records(self) -> int:
        """How many events are kept."""
        return sum(len(times.start_us) for times in self._all_times())

    def starts_us(self) -> Iterator[float]:
        """When the events that are kept begin."""
        return chain.from_iterable(times.start_us for times in self._all_times())

    def keeps(self, event: ChromeEvent) -> bool:
        """Whether an event may be one that is kept."""
        return event.cat in _CATEGORIES and _CATEGORIES[event.cat] != _HOST_OPERATION

    def _all_times(self) -> tuple[Times, ...]:
        return (
            self._operation_times,
            self._call_times,
            self._overhead,
            self._range_times,
            self._message_times,
        )

    def operations(self) -> tuple[dict[str, Ns], Flags]:
        """The columns of the operations, and which rows have a valid time."""
        start, end, valid = self._operation_times.ns()
        return self._operations.arrays() | {"start_ns": start, "end_ns": end}, valid

    def calls(self) -> HostCalls:
        """The host's calls that put work on the GPU or wait for it."""
        start, end, valid = self._call_times.ns()
        columns = self._calls.arrays() | {"start_ns": start, "end_ns": end}
        return calls_of({name: column[valid] for name, column in columns.items()})

    def phases(self) -> list[Phase]:
        """Ranges that the program named on the host, in order of start."""
        start, end, valid = self._range_times.ns()
        rows = zip(start.tolist(), end.tolist(), valid.tolist(), self._ranges, strict=True)
        phases = [
            Phase(name=name, start_ns=start_ns, end_ns=end_ns, thread=thread)
            for start_ns, end_ns, fits, (name, thread) in rows
            if fits
        ]
        return sorted(phases, key=lambda phase: (phase.start_ns, -phase.end_ns))

    def messages(self) -> list[HostMessage]:
        """Sends and receives that the host asked for."""
        start, _, valid = self._message_times.ns()
        return [
            HostMessage(start_ns=start_ns, thread=thread, message=message)
            for start_ns, fits, (thread, message) in zip(
                start.tolist(), valid.tolist(), self._messages, strict=True
            )
            if fits
        ]

    def overhead(self) -> tuple[Ns, Ns]:
        """When the profiler held the process up."""
        start, end, valid = self._overhead.ns()
        return start[valid], end[valid]

    def captured_ns(self) -> tuple[int, int] | None:
        """When the recording began and ended."""
        start, end, valid = self._recorded.ns()
        return (int(start[valid].min()), int(end[valid].max())) if valid.any() else None

    def _add_operation(self, event: ChromeEvent, kind: OperationKind) -> None:
        args = event.args or _NO_ARGS
        if kind is OperationKind.COMMUNICATION and args.collective:
            self.collectives.append((len(self._operation_times.start_us), args))
        self._operation_times.append(event)
        self._operations.append(
            kind,
            self.names.setdefault(event.name, len(self.names)),
            _number(event.tid if args.stream is None else args.stream),
            _number(args.correlation),
            _number(event.pid if args.device is None else args.device),
        )

    def _add_call(self, event: ChromeEvent) -> None:
        kind = call_kind(event.name)
        if kind is not HostCallKind.OTHER:
            self._call_times.append(event)
            correlation = _number(event.args.correlation) if event.args else -1
            name = self.call_names.setdefault(event.name, len(self.call_names))
            self._calls.append(kind, correlation, self.thread_of(event), name)

    def _add_range(self, event: ChromeEvent) -> None:
        self._range_times.append(event)
        self._ranges.append((event.name, self.thread_of(event)))

    def _add_host_operation(self, event: ChromeEvent) -> None:
        self.host_operations += 1
        if event.name == "record_param_comms":
            args = event.args or _NO_ARGS
            sent = args.collective == "send"
            peer = args.destination if sent else args.source
            if args.collective in {"send", "recv"} and peer is not None:
                group = args.group_description or args.group or ""
                self._message_times.append(event)
                self._messages.append((self.thread_of(event), Message(peer=peer, sent=sent, group=group)))
        elif event.name.startswith(_RANGES_OF_PYTORCH):
            self._add_range(event)

    def thread_of(self, event: ChromeEvent) -> int:
        """The number of an event's thread, as in `HostCalls.thread`."""
        return self._threads.setdefault(event.tid, len(self._threads))


_NO_ARGS = Args()


def _number(value: int | str | None) -> int:
    """A whole number that fits a column; -1 for what is none."""
    if isinstance(value, int):
        return value if -(2**62) < value < 2**62 else -1
    if value is None:
        return -1
    digits = value.strip()
    return int(digits) if digits.isdigit() and len(digits) < 19 else -1

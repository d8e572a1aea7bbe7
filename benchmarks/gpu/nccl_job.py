"""Collectives, sends and receives straight through libnccl, without a framework: one rank of a small job.

    python -m benchmarks.gpu.nccl_job --library LIBNCCL --ranks 2 --rank 0 --exchange FOLDER

Any release of NCCL can be tried so, whatever torch was built with. GPU and host meet only through the CUDA
driver and NCCL, by ctypes. Written to `rank-N.json` in the folder: in the order of their calls, each
operation with its function, bytes, the phase it was in and its time between two CUDA events. All of a kind
wait on the stream until the last of them is there, so that no event is early for a launch that is late.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from ctypes import byref, c_char, c_float, c_int, c_size_t, c_uint, c_uint32, c_uint64, c_void_p
from dataclasses import asdict, dataclass
from pathlib import Path

SIZES_BYTES = (64 << 10, 1 << 20, 64 << 20)
COLLECTIVES = ("AllReduce", "AllGather", "ReduceScatter", "Broadcast", "Reduce")
PHASES = ("collectives", "send_receive", "split", "graph", "again")
REPEATS = 10
GRAPH_OPERATIONS, GRAPH_LAUNCHES = 5, 10
_FLOAT32, _SUM, _IN_PROGRESS = 7, 0, 7
_FLOAT32_BYTES = 4
_UNIQUE_ID_BYTES = 128
_CAPTURE_RELAXED = 2
_MAPPED, _AT_LEAST = 2, 0
_LONG_S = 60.0
_POLL_S = 0.001


class _UniqueId(ctypes.Structure):
    _fields_ = [("internal", c_char * _UNIQUE_ID_BYTES)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One operation as the job asked for it. `event_s` is None where no pair of events was around it."""

    function: str
    phase: str
    bytes: int
    event_s: float | None


class Driver:
    """As much of the CUDA driver as is needed. Raises `RuntimeError` with the driver's code."""

    def __init__(self, device: int) -> None:
        self._cuda = ctypes.CDLL("libcuda.so.1")
        context, handle = c_void_p(), c_int()
        self._do("cuInit", c_uint(0))
        self._do("cuDeviceGet", byref(handle), c_int(device))
        self._do("cuDevicePrimaryCtxRetain", byref(context), handle)
        self._do("cuCtxSetCurrent", context)
        self.stream = c_void_p()
        self._do("cuStreamCreate", byref(self.stream), c_uint(1))
        gate, self._gate_of_gpu = c_void_p(), c_uint64()
        self._do("cuMemHostAlloc", byref(gate), c_size_t(4), c_uint(_MAPPED))
        self._do("cuMemHostGetDevicePointer_v2", byref(self._gate_of_gpu), gate, c_uint(0))
        self._gate = c_uint32.from_address(gate.value or 0)
        self._gate.value = 0

    def memory(self, size: int) -> c_uint64:
        """Memory on the GPU, until the process ends."""
        pointer = c_uint64()
        self._do("cuMemAlloc_v2", byref(pointer), c_size_t(size))
        self._do("cuMemsetD8_v2", pointer, ctypes.c_ubyte(0), c_size_t(size))
        return pointer

    def mark(self) -> c_void_p:
        """An event, recorded now."""
        event = c_void_p()
        self._do("cuEventCreate", byref(event), c_uint(0))
        self._do("cuEventRecord", event, self.stream)
        return event

    def between_s(self, begin: c_void_p, end: c_void_p) -> float:
        """The time between two events that have passed."""
        elapsed_ms = c_float()
        self._do("cuEventElapsedTime", byref(elapsed_ms), begin, end)
        return elapsed_ms.value / 1e3

    @contextmanager
    def held(self) -> Iterator[None]:
        """The GPU begins what is put on the stream inside when the block ends."""
        opens_at = self._gate.value + 1
        wait = (
            "cuStreamWaitValue32_v2",
            self.stream,
            self._gate_of_gpu,
            c_uint32(opens_at),
            c_uint(_AT_LEAST),
        )
        self._do(*wait)
        try:
            yield
        finally:
            self._gate.value = opens_at

    def wait(self) -> None:
        """Until the stream is empty."""
        self._do("cuStreamSynchronize", self.stream)

    def repeated(self, work: Callable[[], None], launches: int) -> None:
        """Capture what `work` puts on the stream as a graph, launch it so many times, and forget it."""
        graph, ready = c_void_p(), c_void_p()
        self._do("cuStreamBeginCapture_v2", self.stream, c_int(_CAPTURE_RELAXED))
        work()
        self._do("cuStreamEndCapture", self.stream, byref(graph))
        self._do("cuGraphInstantiateWithFlags", byref(ready), graph, ctypes.c_ulonglong(0))
        for _ in range(launches):
            self._do("cuGraphLaunch", ready, self.stream)
        self.wait()
        # A communicator does not end while a graph holds it.
        self._do("cuGraphExecDestroy", ready)
        self._do("cuGraphDestroy", graph)

    def _do(self, name: str, *arguments: object) -> None:
        code = getattr(self._cuda, name)(*arguments)
        if code:
            message = f"{name} failed with CUDA's error {code}."
            raise RuntimeError(message)


class Nccl:
    """One library. Waits after each call until NCCL is done with it, as a non-blocking communicator asks."""

    def __init__(self, library: Path) -> None:
        self._nccl = ctypes.CDLL(str(library))

    @property
    def version(self) -> int:
        """Its release as NCCL writes it: 22809 is 2.28.9."""
        number = c_int()
        self.do(None, "ncclGetVersion", byref(number))
        return number.value

    def communicator(self, rank: int, ranks: int, shared: Path) -> c_void_p:
        """A communicator of all ranks, who meet in that file."""
        identity = _UniqueId()
        if rank == 0:
            self.do(None, "ncclGetUniqueId", byref(identity))
            whole = shared.with_suffix(".new")
            whole.write_bytes(bytes(identity))
            whole.rename(shared)
        _until(shared.exists)
        identity = _UniqueId.from_buffer_copy(shared.read_bytes())
        made = c_void_p()
        code = self._nccl.ncclCommInitRank(byref(made), c_int(ranks), identity, c_int(rank))
        self._settle(made, "ncclCommInitRank", code)
        return made

    def split(self, communicator: c_void_p, rank: int) -> c_void_p:
        """A second communicator of the same ranks in the other order."""
        made = c_void_p()
        code = self._nccl.ncclCommSplit(communicator, c_int(0), c_int(-rank), byref(made), None)
        self._settle(communicator, "ncclCommSplit", code)
        _until(lambda: bool(made))
        self._settle(made, "ncclCommSplit", 0)
        return made

    def destroy(self, communicator: c_void_p) -> None:
        """End a communicator. Finalizing may go on for a while when it does not block."""
        self.do(communicator, "ncclCommFinalize", communicator)
        self.do(None, "ncclCommDestroy", communicator)

    def do(self, communicator: c_void_p | None, name: str, *arguments: object) -> None:
        """Call it, and wait for the communicator to have taken it."""
        self._settle(communicator, name, getattr(self._nccl, name)(*arguments))

    def function(self, name: str) -> Callable[..., int]:
        """The bare function, for whom each microsecond counts; it returns NCCL's code."""
        found: Callable[..., int] = getattr(self._nccl, name)
        return found

    def grouped(self, communicator: c_void_p, calls: Mapping[str, tuple[object, ...]]) -> None:
        """Several calls as one group."""
        self.do(None, "ncclGroupStart")
        for name, arguments in calls.items():
            # In a group they are only noted, so a communicator has nothing to be waited for.
            self.do(None, name, *arguments)
        self.do(communicator, "ncclGroupEnd")

    def _settle(self, communicator: c_void_p | None, name: str, code: int) -> None:
        state = c_int(0 if communicator is None and code == _IN_PROGRESS else code)
        if communicator is not None and code in {0, _IN_PROGRESS}:
            deadline_s = time.monotonic() + _LONG_S
            state.value = _IN_PROGRESS
            while state.value == _IN_PROGRESS and time.monotonic() < deadline_s:
                self._nccl.ncclCommGetAsyncError(communicator, byref(state))
                if state.value == _IN_PROGRESS:
                    time.sleep(_POLL_S)
        if state.value:
            message = f"{name} failed with NCCL's error {state.value}."
            raise RuntimeError(message)


class Job:
    """One rank's operations, and what it called."""

    def __init__(self, nccl: Nccl, driver: Driver, rank: int, ranks: int) -> None:
        self._nccl, self._driver = nccl, driver
        self._rank, self._ranks = rank, ranks
        self._send = driver.memory(max(SIZES_BYTES) * ranks)
        self._receive = driver.memory(max(SIZES_BYTES) * ranks)
        self._calls: list[tuple[str, str, int, c_void_p | None, c_void_p | None]] = []

    def collective(
        self, communicator: c_void_p, function: str, size: int, phase: str, *, timed: bool
    ) -> None:
        """One collective of so many bytes a rank."""
        count = c_size_t(size // _FLOAT32_BYTES)
        kind, stream = c_int(_FLOAT32), self._driver.stream
        rest: dict[str, tuple[object, ...]] = {
            "AllReduce": (kind, c_int(_SUM), communicator, stream),
            "AllGather": (kind, communicator, stream),
            "ReduceScatter": (kind, c_int(_SUM), communicator, stream),
            "Broadcast": (kind, c_int(0), communicator, stream),
            "Reduce": (kind, c_int(_SUM), c_int(0), communicator, stream),
        }
        arguments = (self._send, self._receive, count, *rest[function])
        self._timed(
            ((function, size),),
            phase,
            lambda: self._nccl.do(communicator, f"nccl{function}", *arguments),
            timed=timed,
        )

    def repeat(self, one: Callable[..., None], *arguments: object) -> None:
        """Once for what NCCL sets up with the first, then `REPEATS` times in a row with events."""
        one(*arguments, timed=False)
        self._driver.wait()
        with self._driver.held():
            for _ in range(REPEATS):
                one(*arguments, timed=True)
        self._driver.wait()

    def exchange(self, communicator: c_void_p, size: int, phase: str, *, timed: bool) -> None:
        """To the next rank and from the one before, in one group: one kernel."""
        count, kind, stream = c_size_t(size // _FLOAT32_BYTES), c_int(_FLOAT32), self._driver.stream
        after, before = (self._rank + 1) % self._ranks, (self._rank - 1) % self._ranks

        def both() -> None:
            send = (self._send, count, kind, c_int(after), communicator, stream)
            receive = (self._receive, count, kind, c_int(before), communicator, stream)
            self._nccl.grouped(communicator, {"ncclSend": send, "ncclRecv": receive})

        self._timed((("Send", size), ("Recv", size)), phase, both, timed=timed)

    def graph(self, communicator: c_void_p) -> None:
        """Operations that are captured once and launched many times."""

        def work() -> None:
            for _ in range(GRAPH_OPERATIONS):
                self.collective(communicator, "AllReduce", SIZES_BYTES[1], "graph", timed=False)

        self._driver.repeated(work, GRAPH_LAUNCHES)

    def calls(self) -> list[Call]:
        """What was called, in order; waits for all of it."""
        self._driver.wait()
        return [
            Call(
                function=function,
                phase=phase,
                bytes=size,
                event_s=None if begin is None or end is None else self._driver.between_s(begin, end),
            )
            for function, phase, size, begin, end in self._calls
        ]

    def _timed(
        self, operations: tuple[tuple[str, int], ...], phase: str, call: Callable[[], None], *, timed: bool
    ) -> None:
        begin = self._driver.mark() if timed else None
        call()
        end = self._driver.mark() if timed else None
        self._calls += [(function, phase, size, begin, end) for function, size in operations]


def _until(true: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + _LONG_S
    while not true():
        if time.monotonic() > deadline_s:
            message = "The other rank did not come."
            raise RuntimeError(message)
        time.sleep(_POLL_S)


def run(nccl: Nccl, job: Job, rank: int, ranks: int, folder: Path) -> None:
    """All phases."""
    world = nccl.communicator(rank, ranks, folder / "id-1")
    for function in COLLECTIVES:
        for size in SIZES_BYTES:
            job.repeat(job.collective, world, function, size, "collectives")
    for size in SIZES_BYTES:
        job.repeat(job.exchange, world, size, "send_receive")
    turned = nccl.split(world, rank)
    job.repeat(job.collective, turned, "AllReduce", SIZES_BYTES[1], "split")
    nccl.destroy(turned)
    job.graph(world)
    nccl.destroy(world)
    again = nccl.communicator(rank, ranks, folder / "id-2")
    job.repeat(job.collective, again, "AllReduce", SIZES_BYTES[1], "again")
    nccl.destroy(again)


def main() -> None:
    """Run one rank."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--library", type=Path, required=True)
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--exchange", type=Path, required=True, metavar="FOLDER")
    args = parser.parse_args()
    driver, nccl = Driver(args.rank), Nccl(args.library)
    job = Job(nccl, driver, args.rank, args.ranks)
    run(nccl, job, args.rank, args.ranks, args.exchange)
    written = {"nccl": nccl.version, "calls": [asdict(call) for call in job.calls()]}
    (args.exchange / f"rank-{args.rank}.json").write_text(json.dumps(written))


if __name__ == "__main__":
    main()

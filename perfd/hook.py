"""Times a training loop from inside, without ever making it wait; needs nothing, and uses torch.

    from perfd import hook

    timer = hook.StepTimer()
    for batch in timer.batches(loader):
        with timer.step():
            with timer.phase("forward"):
                loss = model(batch)
            with timer.phase("backward"):
                loss.backward()
            with timer.phase("optimizer"):
                optimizer.step()

Phases are timed by CUDA events that are read steps later, when the GPU has long passed them: nothing here
synchronises. They are NVTX ranges too. What was measured goes to the agent of the node over a Unix datagram
socket that never blocks; without an agent nothing is recorded at all.

`benchmark(fn)` times a function the way it should be done. docs/hook.md has both.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import statistics
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

SOCKET_VARIABLE = "PERFD_HOOK_SOCKET"
NODE_VARIABLE = "PERFD_HOOK_NODE"
"""On which machine that socket is, from those whose job may go on to others with their environment."""
FORMAT = 1
_SYSTEM_SOCKET = "/run/perfd/hook.sock"
_LOOK_AGAIN_S = 1.0
"""Without an agent: how often a socket is looked for."""
_MOST_PENDING = 16
"""Steps whose events the GPU has not reached. More are given up: the loop must not pay for them."""
_MOST_UNSENT = 64
_DATA = "data_loading"
_RANK_VARIABLES = ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK")

_T = TypeVar("_T")


class Mark(Protocol):
    """A point on the clock that times the work: a CUDA event, or an instant of the host."""

    def record(self) -> None:
        """Set the mark where the work stands now."""

    def query(self) -> bool:
        """Whether the work has passed it; never waits."""

    def elapsed_time(self, end: Any, /) -> float:  # noqa: ANN401  (a mark of the same kind)
        """Milliseconds until `end`."""


class _HostMark:
    """An instant of the host's clock, for work that no GPU does."""

    __slots__ = ("_at_s",)

    def record(self) -> None:
        self._at_s = time.perf_counter()

    def query(self) -> bool:
        return True

    def elapsed_time(self, end: _HostMark, /) -> float:
        return 1000 * (end._at_s - self._at_s)


def default_socket(environ: Mapping[str, str] | None = None) -> str:
    """Where the agent listens: as the environment says, else the system's place, else the user's.

    A socket of another machine is left out, as after `perfd run -- srun ...`; of a container that has another
    name it may be here all the same.
    """
    known = os.environ if environ is None else environ
    said = known.get(SOCKET_VARIABLE)
    here = known.get(NODE_VARIABLE) in {None, socket.gethostname()}
    if said and (here or os.path.exists(said)):  # noqa: PTH110  (pathlib costs the job an import)
        return said
    if os.path.isdir(os.path.dirname(_SYSTEM_SOCKET)):  # noqa: PTH112, PTH120  (pathlib costs the job an import)
        return _SYSTEM_SOCKET
    return f"{tempfile.gettempdir()}/perfd-hook-{os.getuid()}.sock"


@dataclass(slots=True)
class _Step:
    """The marks of one step, until they are passed."""

    number: int
    begun_unix_ns: int
    start: Mark
    data_s: float | None
    phases: list[tuple[str, Mark, Mark]] = field(default_factory=list)
    end: Mark | None = None


class StepTimer:
    """Times the steps and phases of one rank's loop. For one thread, the loop's.

    With `report_steps`, steps and the `layout` (sizes of `tp`, `pp`, `dp`, `cp`, `ep`) are told as a log
    would tell them: for jobs without a log that perfd reads. The first `warmup_steps` are left out. All
    else is found in the environment that the launcher made.
    """

    def __init__(
        self,
        *,
        job: str | None = None,
        layout: Mapping[str, int] | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        warmup_steps: int = 3,
        first_step: int = 1,
        report_steps: bool = False,
        nvtx: bool = True,
        socket_path: str | None = None,
        new_mark: Callable[[], Mark] | None = None,
    ) -> None:
        self._head = {
            "v": FORMAT,
            "job": job,
            "rank": _number(_RANK_VARIABLES) or 0 if rank is None else rank,
            "world_size": _number(("WORLD_SIZE", "SLURM_NTASKS")) if world_size is None else world_size,
            "layout": dict(layout or {}),
            "report_steps": report_steps,
        }
        self._cuda = cuda = _cuda()
        self._new_mark: Callable[[], Mark] = new_mark or (_event_of(cuda) if cuda else _HostMark)
        self._head["clock"] = "cuda" if cuda or new_mark else "host"
        self._nvtx = _nvtx_of(cuda) if nvtx and cuda else None
        self._number = first_step - 1
        self._warm_from = first_step + warmup_steps
        self._sender = _Sender(socket_path)
        self._active = self._sender.open()
        self._looked_s = time.perf_counter()
        self._spare: list[Mark] = []
        self._current: _Step | None = None
        self._finished: _Step | None = None
        self._pending: deque[tuple[_Step, Mark]] = deque()
        self._data_s: float | None = None
        self.dropped_steps = 0
        """Steps that were given up because the GPU was far behind, or nobody took them."""

    def batches(self, loader: Iterable[_T]) -> Iterator[_T]:
        """The batches of `loader`, with the time that the loop waited for each."""
        iterator = iter(loader)
        while True:
            begun_s = time.perf_counter()
            try:
                batch = next(iterator)
            except StopIteration:
                return
            self._data_s = time.perf_counter() - begun_s
            yield batch

    @contextlib.contextmanager
    def step(self) -> Iterator[None]:
        """Around one step. A step's time is from its start to the start of the next one."""
        self._number += 1
        if not self._active:
            self._look_again()
        if self._active and not self._capturing():
            self._begin()
        with self._range(f"step {self._number}"):
            yield
        if self._current is not None and not self._capturing():
            self._finished, self._current = self._current, None
            self._send_passed()

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Around one phase of a step: `forward`, `backward`, `optimizer`, or any other name."""
        step = self._current
        if step is None or self._capturing():
            with self._range(name):
                yield
            return
        start, end = self._mark(), self._mark()
        with self._range(name):
            start.record()
            try:
                yield
            finally:
                end.record()
        step.phases.append((name, start, end))

    def close(self) -> None:
        """Send what the GPU has passed by now, and leave the agent alone."""
        self._send_passed()
        self._sender.close()
        self._active = False

    def _capturing(self) -> bool:
        """Whether a CUDA graph is captured: an event would be part of it, and a question would end it."""
        return self._cuda is not None and self._cuda.is_current_stream_capturing()

    def _look_again(self) -> None:
        now_s = time.perf_counter()
        if now_s - self._looked_s >= _LOOK_AGAIN_S:
            self._looked_s = now_s
            self._active = self._sender.open()

    def _begin(self) -> None:
        mark = self._mark()
        mark.record()
        if self._finished is not None:
            self._pending.append((self._finished, mark))
            self._finished = None
        data_s, self._data_s = self._data_s, None
        self._current = _Step(self._number, time.time_ns(), mark, data_s)

    def _send_passed(self) -> None:
        while len(self._pending) > _MOST_PENDING:
            self._pending.popleft()
            self.dropped_steps += 1
        while self._pending and self._pending[0][1].query():
            step, next_start = self._pending.popleft()
            if step.number >= self._warm_from and not self._sender.send(self._message(step, next_start)):
                self.dropped_steps += 1
                self._active = self._sender.connected
            self._spare += [step.start, *(mark for _, *marks in step.phases for mark in marks)]

    def _message(self, step: _Step, next_start: Mark) -> dict[str, object]:
        return {**self._head, **_times(step, next_start), "dropped": self.dropped_steps}

    def _mark(self) -> Mark:
        return self._spare.pop() if self._spare else self._new_mark()

    @contextlib.contextmanager
    def _range(self, name: str) -> Iterator[None]:
        if self._nvtx is None:
            yield
            return
        self._nvtx.range_push(name)
        try:
            yield
        finally:
            self._nvtx.range_pop()


def _times(step: _Step, next_start: Mark) -> dict[str, object]:
    phases: dict[str, float] = {} if step.data_s is None else {_DATA: step.data_s}
    for name, start, end in step.phases:
        # A phase that runs once a micro-batch is the sum of them.
        phases[name] = phases.get(name, 0.0) + _seconds(start, end)
    return {
        "step": step.number,
        "unix_ns": step.begun_unix_ns,
        "step_s": _seconds(step.start, next_start),
        "phases": phases,
    }


class _Sender:
    """A datagram socket to the agent; whatever goes wrong with it is no matter of the job's."""

    def __init__(self, path: str | None) -> None:
        self._path = path or default_socket()
        self._socket: socket.socket | None = None
        # The kernel keeps only a few datagrams for a listener; the rest waits here for the next step.
        self._unsent: deque[bytes] = deque()

    @property
    def connected(self) -> bool:
        return self._socket is not None

    def open(self) -> bool:
        if not hasattr(socket, "AF_UNIX") or not os.path.exists(self._path):  # noqa: PTH110  (see default_socket)
            return False
        try:
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
            self._socket.setblocking(False)
            self._socket.connect(self._path)
        except OSError:
            self.close()
        return self.connected

    def send(self, message: Mapping[str, object]) -> bool:
        if self._socket is None:
            return False
        self._unsent.append(json.dumps(message).encode())
        try:
            while self._unsent:
                self._socket.send(self._unsent[0])
                self._unsent.popleft()
        except BlockingIOError:
            # The agent is slow; it is still there.
            if len(self._unsent) <= _MOST_UNSENT:
                return True
            self._unsent.popleft()
            return False
        except OSError:
            self.close()
            return False
        return True

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None
            self._unsent.clear()


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """How long a function takes, over `iterations` calls after warming up."""

    iterations: int
    mean_s: float
    median_s: float
    stdev_s: float
    min_s: float
    max_s: float
    clock: str
    """`cuda` events, or the `host`'s clock where there is no GPU."""
    warnings: tuple[str, ...] = ()
    """Why the numbers may not mean what one thinks."""


_LEAST_S = 20e-6
"""Shorter work is about launching it; CUDA events tell half a microsecond apart."""
_NOISY = 0.1
_DRIFT = 0.1
_HOST_BOUND = 0.9


def benchmark(
    fn: Callable[[], object],
    *,
    iterations: int = 100,
    warmup: int = 10,
    new_mark: Callable[[], Mark] | None = None,
    synchronise: Callable[[], None] | None = None,
    allocated_bytes: Callable[[], int] | None = None,
) -> Measurement:
    """Time `fn` on the current CUDA stream, or by the host's clock without a GPU.

    It is called `warmup` times first; the marks are made before the first timed call; and there is one
    synchronisation, at the end. The last three arguments replace torch, for tests.
    """
    if iterations < 1 or warmup < 0:
        raise ValueError("benchmark needs at least one iteration, and no negative warm-up.")
    cuda = _cuda()
    make: Callable[[], Mark] = new_mark or (_event_of(cuda) if cuda else _HostMark)
    wait = synchronise or (cuda.synchronize if cuda else _nothing)
    memory = allocated_bytes or (cuda.memory_allocated if cuda else int)
    for _ in range(warmup):
        fn()
    synchronised = _synchronises(fn, cuda) if cuda else False
    marks = [(make(), make()) for _ in range(iterations)]
    wait()
    before_bytes = memory()
    begun_s = time.perf_counter()
    for start, end in marks:
        start.record()
        fn()
        end.record()
    host_s = time.perf_counter() - begun_s
    wait()
    grown_bytes = memory() - before_bytes
    times_s = [_seconds(start, end) for start, end in marks]
    by_gpu = cuda is not None or new_mark is not None
    return Measurement(
        iterations=iterations,
        mean_s=statistics.fmean(times_s),
        median_s=statistics.median(times_s),
        stdev_s=statistics.stdev(times_s) if iterations > 1 else 0.0,
        min_s=min(times_s),
        max_s=max(times_s),
        clock="cuda" if by_gpu else "host",
        warnings=tuple(
            _doubts(
                times_s,
                host_s=host_s if by_gpu else None,
                grown_bytes=grown_bytes,
                synchronised=synchronised,
            )
        ),
    )


def _seconds(start: Mark, end: Mark) -> float:
    return start.elapsed_time(end) / 1000


def _doubts(
    times_s: list[float], *, host_s: float | None, grown_bytes: int, synchronised: bool
) -> Iterator[str]:
    median_s = statistics.median(times_s)
    if synchronised:
        yield "The function synchronises inside, so that the GPU idles until the host is back: that is timed."
    if grown_bytes > 0:
        yield f"{grown_bytes} bytes more are allocated after the run: the function keeps what it makes."
    if median_s < _LEAST_S:
        yield (
            f"One call takes {1e6 * median_s:.1f} us, which is about launching it: put several calls into"
            " one, or use a CUDA graph."
        )
    elif host_s is not None and host_s >= _HOST_BOUND * sum(times_s) and not synchronised:
        yield "The host is as slow as the GPU, so the times are those of launching: use a CUDA graph."
    if len(times_s) >= 20:
        quarter = len(times_s) // 4
        first, last = statistics.median(times_s[:quarter]), statistics.median(times_s[-quarter:])
        if abs(first - last) > _DRIFT * median_s:
            yield "First and last calls take unequal times: warm up longer, or look at the clocks."
        elif statistics.stdev(times_s) > _NOISY * statistics.fmean(times_s):
            yield "The times scatter by more than 10 %: use the median, and look for other work beside it."


def _synchronises(fn: Callable[[], object], cuda: Any) -> bool:  # noqa: ANN401  (a module)
    """Whether a call makes the host wait for the GPU, by torch's own watch and by counting calls."""
    import warnings  # noqa: PLC0415  (only here)

    calls = 0
    plain = cuda.synchronize

    def counting(*args: Any, **kwargs: Any) -> None:  # noqa: ANN401  (passed through)
        nonlocal calls
        calls += 1
        plain(*args, **kwargs)

    mode = cuda.get_sync_debug_mode()
    # The modes of torch warn of what waits in passing; who says it outright is counted.
    cuda.synchronize = counting
    try:
        cuda.set_sync_debug_mode("warn")
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            fn()
    finally:
        cuda.set_sync_debug_mode(mode)
        cuda.synchronize = plain
    return calls > 0 or any("synchroniz" in str(warning.message) for warning in caught)


def _cuda() -> Any:  # noqa: ANN401  (a module)
    """`torch.cuda` where it works, else None.

    Imported when something is timed and not before: the agent needs this module's names only.
    """
    try:
        import torch  # noqa: PLC0415
    except ImportError:
        # The module works without, by the host's clock.
        return None
    return torch.cuda if torch.cuda.is_available() else None


def _nvtx_of(cuda: Any) -> Any:  # noqa: ANN401  (a module)
    """Its NVTX, None where torch was built without: it says so when it is called."""
    try:
        cuda.nvtx.mark("perfd")
    except RuntimeError:
        return None
    return cuda.nvtx


def _event_of(cuda: Any) -> Callable[[], Mark]:  # noqa: ANN401  (a module)
    return lambda: cuda.Event(enable_timing=True)


def _nothing() -> None:
    pass


def _number(names: Iterable[str]) -> int | None:
    found = (os.environ.get(name, "") for name in names)
    return next((int(text) for text in found if text.isdecimal()), None)

"""Times steps and phases by CUDA events that are read steps later."""

from __future__ import annotations

import contextlib
import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from perfd.hook.gpu_timestamps import HostMark, Mark, cuda_of_torch, event_of, nvtx_of, seconds
from perfd.hook.process_rank import ProcessRank, process_rank
from perfd.hook.sender import Sender

FORMAT = 1
"""Version of the messages, which the collector checks."""
_RECONNECT_INTERVAL_S = 1.0
"""How often the socket is tried without an agent. Chosen, not measured."""
_MAX_PENDING_STEPS = 16
"""Steps whose events the GPU has not reached; further ones are dropped, which bounds the cost. Chosen."""
_DATA = "data_loading"
_T = TypeVar("_T")


class FlopsOfStep:
    """A count that has begun. Counting slows the step, so its time is of no use."""

    def __init__(self, counter: Any) -> None:  # noqa: ANN401  (torch's FlopCounterMode)
        self._counter = counter
        counter.__enter__()

    def end(self) -> float | None:
        """The FLOPs since the beginning, of this process; None if no operation was counted."""
        self._counter.__exit__(None, None, None)
        return float(self._counter.get_total_flops()) or None


def flops_of_step() -> FlopsOfStep | None:
    """Begin to count; None without torch."""
    try:
        from torch.utils.flop_counter import FlopCounterMode  # noqa: PLC0415
    except ImportError:
        return None
    return FlopsOfStep(FlopCounterMode(display=False))


@dataclass(slots=True)
class _Step:
    """The marks of one step, until the GPU has reached them."""

    number: int
    begun_unix_ns: int
    start: Mark
    data_s: float | None
    phases: list[tuple[str, Mark, Mark]] = field(default_factory=list)
    amounts: dict[str, float] = field(default_factory=dict)


class StepTimer:
    """Times the steps and phases of one rank's loop. For one thread, the loop's.

    With `report_steps`, steps and the `layout` (sizes of `tp`, `pp`, `dp`, `cp`, `ep`) are reported as from a
    log: for jobs without a log that perfd can read. The first `warmup_steps` are not reported. The other
    defaults come from the process group of torch or JAX, otherwise from the launcher's environment variables.

    `precision` is the data type of the job's matrix products (`bf16`, `fp16`, `fp8`, `fp32`): it selects the
    peak of MFU. `count_flops` counts the FLOPs of one warm-up step with torch's counter and reports them with
    each step; compiled regions are not counted.
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
        precision: str | None = None,
        count_flops: bool = False,
        nvtx: bool = True,
        socket_path: str | None = None,
        new_mark: Callable[[], Mark] | None = None,
    ) -> None:
        self._head = {
            "v": FORMAT,
            "job": job,
            "layout": dict(layout or {}),
            "report_steps": report_steps,
            "precision": precision,
        }
        self._flops: float | None = None
        self._flops_step = first_step + min(1, warmup_steps - 1) if count_flops and warmup_steps > 0 else None
        self._counter: FlopsOfStep | None = None
        self._stated = ProcessRank(rank, world_size)
        self._known: ProcessRank | None = None
        self._cuda = cuda = cuda_of_torch()
        self._new_mark: Callable[[], Mark] = new_mark or (event_of(cuda) if cuda else HostMark)
        self._head["clock"] = "cuda" if cuda or new_mark else "host"
        self._nvtx = nvtx_of(cuda) if nvtx and cuda else None
        self._number = first_step - 1
        self._warm_from = first_step + warmup_steps
        self._sender = Sender(socket_path)
        self._active = self._sender.open()
        self._tried_s = time.perf_counter()
        self._spare: list[Mark] = []
        self._current: _Step | None = None
        self._finished: _Step | None = None
        self._pending: deque[tuple[_Step, Mark]] = deque()
        self._data_s: float | None = None
        self.dropped_steps = 0
        """Steps that were dropped because the GPU was far behind, or the agent too slow."""

    def batches(self, loader: Iterable[_T]) -> Iterator[_T]:
        """Iterate over `loader`, timing how long the loop waits for each batch."""
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
        """Wrap one step. Its time is from its start to the start of the next one."""
        self.begin_step()
        with self._range(f"step {self._number}"):
            yield
        self.end_step()

    def begin_step(self, number: int | None = None, *, data_s: float | None = None) -> None:
        """Begin a step where it cannot be wrapped, as in a callback; `end_step` ends it.

        `number`: its number, if it is not the next one. `data_s`: how long the loop waited for its data.
        """
        self._number = self._number + 1 if number is None else number
        if data_s is not None:
            self._data_s = data_s
        if not self._active:
            self._reconnect()
        if self._active and not self._capturing():
            self._begin()
            if self._number == self._flops_step:
                self._counter = flops_of_step()

    def end_step(self, *, data_s: float | None = None) -> None:
        """End the step that `begin_step` began. `data_s`: how long it waited for data, if within the step."""
        if data_s is not None and self._current is not None:
            self._current.data_s = data_s
        if self._counter is not None:
            self._flops, self._counter = self._counter.end(), None
        if self._current is not None and not self._capturing():
            self._finished, self._current = self._current, None
            self._send_passed()

    def pause(self) -> None:
        """Note that no training follows the step that ended, but for example an evaluation."""
        if self._finished is not None and not self._capturing():
            mark = self._mark()
            mark.record()
            self._pending.append((self._finished, mark))
            self._finished = None

    def count(
        self, *, samples: float | None = None, tokens: float | None = None, flops: float | None = None
    ) -> None:
        """Note what the current step, or the one that just ended, worked on.

        `samples` and `tokens` are those of the whole job, `flops` those of this process's GPU. Repeated calls
        add up.
        """
        step = self._current or self._finished
        if step is None:
            return
        for name, amount in (("samples", samples), ("tokens", tokens), ("flops", flops)):
            if amount is not None:
                step.amounts[name] = step.amounts.get(name, 0.0) + amount

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Wrap one phase of a step: `forward`, `backward`, `optimizer`, or any other name."""
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
        """Send the steps that the GPU has finished, and disconnect."""
        self._send_passed()
        self._sender.close()
        self._active = False

    def _capturing(self) -> bool:
        """Whether a CUDA graph is being captured: events would be part of it, and queries would abort it."""
        return self._cuda is not None and self._cuda.is_current_stream_capturing()

    def _reconnect(self) -> None:
        now_s = time.perf_counter()
        if now_s - self._tried_s >= _RECONNECT_INTERVAL_S:
            self._tried_s = now_s
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
        while len(self._pending) > _MAX_PENDING_STEPS:
            self._pending.popleft()
            self.dropped_steps += 1
        while self._pending and self._pending[0][1].query():
            step, next_start = self._pending.popleft()
            if step.number >= self._warm_from and not self._sender.send(self._message(step, next_start)):
                self.dropped_steps += 1
                self._active = self._sender.connected
            self._spare += [step.start, *(mark for _, *marks in step.phases for mark in marks)]

    def _message(self, step: _Step, next_start: Mark) -> dict[str, object]:
        if self._known is None:
            # Not earlier: a loop may create its timer before its process group.
            found = process_rank(os.environ)
            self._known = ProcessRank(
                rank=(found.rank or 0) if self._stated.rank is None else self._stated.rank,
                world_size=found.world_size if self._stated.world_size is None else self._stated.world_size,
            )
        where = self._known._asdict()
        flops = {} if self._flops is None else {"flops": self._flops}
        times = _times(step, next_start)
        return {**self._head, **where, **times, **flops, **step.amounts, "dropped": self.dropped_steps}

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
        # A phase that runs once per micro-batch is summed.
        phases[name] = phases.get(name, 0.0) + seconds(start, end)
    return {
        "step": step.number,
        "unix_ns": step.begun_unix_ns,
        "step_s": seconds(step.start, next_start),
        "phases": phases,
    }

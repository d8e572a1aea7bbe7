"""Switches faults on and off inside a training process, and writes what it did: the truth of a run.

Used by `megatron_job.py` and `loop_job.py`, in the job's own process; imports torch and `phases`, not perfd.
Each rank writes one JSON line per step into `truth-rank<R>.jsonl`: `step`, `begin_unix_s`, `host_s` (slept
in it) and `products` (matrix products added); and, at the end, `truth-gpu-rank<R>.json`: per step the time
between the marks of two steps and that of the added products on the GPU, by CUDA events.
"""

from __future__ import annotations

import gc
import itertools
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from disturbances import CrowdedCore, copy_for, empty_cache
from phases import Phase, load, phase_at
from torch.utils.data import dataloader

_SIZE = 6144
"""Edge of the added products: about 0.6 ms each on an H200, so that few launches make much work."""
_FIRST_TIMED_STEP = 5
"""Steps before it warm up and are left out of the healthy step."""
_CALIBRATION_PRODUCTS = 20
_BY_STEP = frozenset({"gpu", "host", "stall", "loader"})
"""Kinds that need the time of a healthy step, or come after enough of them."""
_NEXT = "_next_data"
"""What the iterator of a loader calls for its next batch, in PyTorch 2.11 and 2.13."""
Mark = Any
"""A CUDA event, or a number."""


class PhaseInjector:
    """What goes wrong on this rank, by step. For one thread, the training loop's.

    Without `cuda` PyTorch leaves the GPU to the job, which then has faults of the host only.
    """

    def __init__(self, plan: Path, out: Path, rank: int, *, micro_batches: int, cuda: bool = True) -> None:
        self._plan = load(plan)
        sized = (
            one.first_step
            for one in self._plan
            if one.kind not in {"healthy", "storage", "decoding", "garbage"}
        )
        self._first_fault_step = next(sized, 0)
        self.rank, self._out, self._micro_batches = rank, out, micro_batches
        self._log = (out / f"truth-rank{rank}.jsonl").open("w")
        self._step = 0
        self._phase: Phase | None = None
        self._begun_s: dict[int, float] = {}
        self._step_s = 0.0
        self._row: dict[str, Any] = {}
        self._step_marks: list[Any] = []
        self._product_marks: list[tuple[int, Any, Any]] = []
        self._cuda = cuda and torch.cuda.is_available()
        self._product_s = 0.0
        self._factors: list[torch.Tensor] = []
        self._objects: list[list[int]] = []
        self._core = CrowdedCore()

    @property
    def micro_batches(self) -> int:
        """How many micro-batches of a step this rank runs."""
        return self._micro_batches

    def begin_step(self) -> None:
        """Call it before each step."""
        self._write_row()
        self._step += 1
        self._row = {"step": self._step, "begin_unix_s": time.time(), "host_s": 0.0, "products": 0}
        if self._step == 2:
            self._make_garbage()
            self._calibrate()
        self._begun_s[self._step] = time.perf_counter()
        self._step_marks.append(self._mark())
        if self._step == self._first_fault_step:
            begun_s = [self._begun_s[step] for step in range(_FIRST_TIMED_STEP, self._step + 1)]
            self._step_s = statistics.median(after - before for before, after in itertools.pairwise(begun_s))
        phase, before = phase_at(self._plan, self._step), self._phase
        self._phase = phase if phase is not None and phase.holds(self.rank) else None
        if self._phase is not before:
            self._core.leave()
            if self._phase is not None and self._phase.kind == "crowded":
                self._core.crowd(round(self._phase.size))
        if self._phase is not None and self._phase.stalls_at(self._step):
            if self._phase.kind == "garbage":
                self._collect_garbage()
            else:
                self._sleep(self._phase.size)

    def begin_micro_batch(self) -> None:
        """Call it before the forward pass of each micro-batch."""
        if self._phase is None:
            return
        added_s = self._phase.size * self._step_s / self._micro_batches
        if self._phase.kind == "host":
            self._sleep(added_s)
        begun_s = time.perf_counter()
        if self._phase.kind == "copying" and self._cuda:
            copy_for(added_s, torch.device("cuda", torch.cuda.current_device()))
            self._row["host_s"] += time.perf_counter() - begun_s
        if self._phase.kind == "busy":
            while time.perf_counter() - begun_s < added_s:
                pass
            self._row["host_s"] += time.perf_counter() - begun_s
        if self._phase.kind == "emptied":
            empty_cache()
        if self._phase.kind == "gpu":
            self._multiply(max(1, round(added_s / self._product_s)))

    def before_batch(self) -> None:
        """Call it where the loader hands out a batch."""
        if self._phase is not None and self._phase.kind == "loader":
            self._sleep(self._phase.size * self._step_s / self._micro_batches)

    def slow_loaders(self) -> None:
        """Have every `DataLoader` of this process call `before_batch`, inside its own wait for a batch."""
        for name in ("_SingleProcessDataLoaderIter", "_MultiProcessingDataLoaderIter"):
            iterator = getattr(dataloader, name)
            setattr(iterator, _NEXT, self._late(getattr(iterator, _NEXT)))

    def close(self) -> None:
        """Write the rest. Waits for the GPU."""
        self._core.leave()
        self._row["end_unix_s"] = time.time()
        self._write_row()
        self._log.close()
        self._step_marks.append(self._mark())
        if self._cuda:
            torch.cuda.synchronize()
        products_s: dict[int, float] = {}
        for step, begin, end in self._product_marks:
            products_s[step] = products_s.get(step, 0.0) + _between_s(begin, end)
        marks = self._step_marks
        document = {
            "rank": self.rank,
            "healthy_step_s": self._step_s,
            "product_s": self._product_s,
            "steps_s": [_between_s(a, b) for a, b in itertools.pairwise(marks)],
            "added_gpu_s": products_s,
        }
        (self._out / f"truth-gpu-rank{self.rank}.json").write_text(json.dumps(document))

    def _late(self, next_data: Callable[..., Any]) -> Callable[..., Any]:
        def late(iterator: object) -> object:
            self.before_batch()
            return next_data(iterator)

        return late

    def _sleep(self, seconds: float) -> None:
        time.sleep(seconds)
        self._row["host_s"] += seconds

    def _collect_garbage(self) -> None:
        begun_s = time.perf_counter()
        gc.collect()
        self._row["host_s"] += time.perf_counter() - begun_s

    def _make_garbage(self) -> None:
        """Objects that the collector has to look at, on a rank that will run it."""
        millions = [one.size for one in self._plan if one.kind == "garbage" and one.holds(self.rank)]
        gc.disable()
        self._objects = [[number] for number in range(int(1e6 * max(millions, default=0.0)))]
        gc.enable()

    def _multiply(self, products: int) -> None:
        left, right, result = self._factors
        begin = self._mark()
        for _ in range(products):
            torch.mm(left, right, out=result)
        self._product_marks.append((self._step, begin, self._mark()))
        self._row["products"] += products

    def _calibrate(self) -> None:
        """Measure one product, once the device is chosen and warm."""
        device = torch.device("cuda", torch.cuda.current_device()) if self._cuda else torch.device("cpu")
        size = _SIZE if self._cuda else 128
        dtype = torch.bfloat16 if self._cuda else torch.float32
        with torch.no_grad():
            self._factors = [torch.randn(size, size, device=device).to(dtype) for _ in range(3)]
        self._multiply(_CALIBRATION_PRODUCTS)
        self._product_marks.clear()
        self._multiply(_CALIBRATION_PRODUCTS)
        _, begin, end = self._product_marks.pop()
        if self._cuda:
            torch.cuda.synchronize()
        self._product_s = _between_s(begin, end) / _CALIBRATION_PRODUCTS

    def _mark(self) -> Mark:
        if not self._cuda:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def _write_row(self) -> None:
        if self._row:
            self._log.write(json.dumps(self._row) + "\n")
            self._log.flush()
            self._row = {}


def _between_s(begin: Mark, end: Mark) -> float:
    if isinstance(begin, float) and isinstance(end, float):
        return end - begin
    return begin.elapsed_time(end) / 1e3

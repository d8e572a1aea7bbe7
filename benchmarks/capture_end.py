"""What becomes of a training process that ends in the middle of a capture with Kineto.

    python -m benchmarks.capture_end --python PYTHON [--runs 100] [--window 20] [--unguarded] [--gpu] [--json]

Real PyTorch processes (`PYTHON` has PyTorch) train in a loop under `KINETO_USE_DAEMON=1` until they are told
when to end, in the environment of `perfd run --kineto` or, `--unguarded`, without what it adds for their end.
perfd captures them, and each ends, with exit code 0 by itself, at a random moment of one phase:

    none        no capture: the process only asks its daemon, as it always does
    told        it has its configuration and its profiler does not work yet
    warm-up     the `warmup_s` seconds before the window
    collecting  the first half of the window, so that it is gone before the window is over
    writing     the two seconds after it, in which libkineto collects, processes and writes
    after       after its trace is there

On a busy machine Python takes longer to end, and a process that is gone only after the window lives: take a
longer `--window` there.

`--json` prints one object: `schema`, `torch`, `device`, `window_s`, and for each phase in `phases` the number
of `runs`, `exits` (how many by exit code, negative: the signal that killed it), `hung` (ended by us 300 s
later) and `slowest_exit_s`, the longest time from the end of training to that of the process.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perfd.capture.kineto import ConfigDelivery, KinetoEndpoint, KinetoOptions, KinetoTool, with_wait_at_exit
from perfd.capture.node import CapturePlan, CaptureTarget
from perfd.clock import SystemClock
from perfd.model import RankPlacement

SCHEMA = "perfd.bench.capture_end/1"
PHASES = ("none", "told", "warm-up", "collecting", "writing", "after")
_WARMUP_S = 2
_HUNG_AFTER_S = 300.0
_CAPTURED_WITHIN_S = 120.0
_WRITING_S = 2.0
_JOB = """
import os, select, sys, time
import torch
torch.set_num_threads(1)
device = "cuda" if torch.cuda.is_available() else "cpu"
model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 64)).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
batch = torch.ones(8, 64, device=device)
step, end_unix_s = 0, float("inf")
while time.time() < end_unix_s:
    for _ in range(5):
        model(batch).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    step += 1
    if step == 3:
        print("trains", torch.__version__, device, flush=True)
    if select.select([sys.stdin], [], [], 0.02)[0]:
        end_unix_s = float(sys.stdin.readline())
print("ends", time.time(), flush=True)
"""


@dataclass(kw_only=True)
class Job:
    """One training process and how it ended."""

    phase: str
    process: subprocess.Popen[str]
    torch: str = ""
    device: str = ""
    code: int | None = None
    hung: bool = False
    exit_s: float | None = None
    traced: bool = False

    def train(self) -> None:
        """Return when it trains; raises RuntimeError when it never does."""
        _, self.torch, self.device = self._line("trains")

    def end_at(self, unix_s: float) -> None:
        """Have it end then."""
        if self.process.stdin is not None:
            self.process.stdin.write(f"{unix_s}\n")
            self.process.stdin.flush()

    def wait(self) -> None:
        """Note how it ends."""
        ended_unix_s = float(self._line("ends")[1])
        try:
            self.code = self.process.wait(_HUNG_AFTER_S)
        except subprocess.TimeoutExpired:
            self.hung = True
            self.process.kill()
            self.process.wait()
        self.exit_s = time.time() - ended_unix_s

    def _line(self, start: str) -> list[str]:
        lines = self.process.stdout or ()
        words = next((line.split() for line in lines if line.startswith(start)), None)
        if words is None:
            raise RuntimeError(f"A training process ended with {self.process.wait()} before it {start}.")
        return words


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What to run."""

    python: str
    window_s: float
    unguarded: bool = False
    gpu: bool = False
    """Trace the GPU too, and accept no trace without kernels."""


def batch(phases: Sequence[str], options: Options, chance: random.Random) -> list[Job]:
    """One capture of as many processes as there are phases, each of which ends in its phase."""
    with tempfile.TemporaryDirectory(prefix="perfd-end-") as folder, _jobs(phases, options, folder) as jobs:
        capture = _Capture(jobs, Path(folder), options)
        try:
            for job in jobs:
                job.train()
            capture.run(chance)
        finally:
            capture.close()
    return jobs


@contextmanager
def _jobs(phases: Sequence[str], options: Options, folder: str) -> Iterator[list[Job]]:
    jobs: list[Job] = []
    environment = {**os.environ, "KINETO_USE_DAEMON": "1", "KINETO_IPC_SOCKET_DIR": folder}
    try:
        for phase in phases:
            process = subprocess.Popen(
                [options.python, "-c", _JOB],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                env=environment if options.unguarded else with_wait_at_exit(environment),
            )
            jobs.append(Job(phase=phase, process=process))
        yield jobs
    finally:
        for job in jobs:
            job.process.kill()
            job.process.communicate()


class _Capture:
    """perfd's capture of some processes, as an agent makes it."""

    def __init__(self, jobs: Sequence[Job], folder: Path, options: Options) -> None:
        clock = SystemClock()
        self._jobs = jobs
        self._folder = folder
        self._window_s = options.window_s
        self._endpoint = KinetoEndpoint(folder, clock)
        self._tool = KinetoTool(
            self._endpoint,
            placements=lambda _: self._placements,
            clock=clock,
            options=KinetoOptions(warmup_s=_WARMUP_S, cpu_only=not options.gpu),
        )
        self._tool.open()

    @property
    def _placements(self) -> Sequence[RankPlacement]:
        return [RankPlacement(job="job", rank=at, pid=job.process.pid) for at, job in enumerate(self._jobs)]

    def run(self, chance: random.Random) -> None:
        """Capture, and have each process end in its phase."""
        _until(lambda: len(self._endpoint.clients()) == len(self._jobs))
        captured = [rank for rank, job in enumerate(self._jobs) if job.phase != "none"]
        plan = CapturePlan(
            capture_id="end",
            directory=self._folder,
            max_duration_s=self._window_s,
            max_bytes=10**9,
            end_is_planned=True,
        )
        start_unix_s = time.time() + 5.0
        targets: Sequence[CaptureTarget] = ()
        if captured:
            targets = self._tool.ready("job", captured).targets
            start_unix_s = (self._tool.start(targets, plan).start_unix_ns or 0) / 1e9
        with ThreadPoolExecutor(len(self._jobs)) as pool:
            ends = [
                pool.submit(self._end, rank, start_unix_s, chance.random()) for rank in range(len(self._jobs))
            ]
            over_s = start_unix_s + self._window_s - time.time()
            wait(ends, timeout=max(0.0, over_s))
            if captured:
                self._tool.stop(targets, plan)
            for end in ends:
                end.result()

    def close(self) -> None:
        self._tool.close()

    def _end(self, rank: int, start_unix_s: float, part: float) -> None:
        """Have a process end when `part` of its phase is over, and wait for it."""
        job, end_unix_s = self._jobs[rank], start_unix_s + self._window_s
        if job.phase == "told":
            key = next(one.key for one in self._endpoint.clients() if one.host_pid == job.process.pid)
            _until(
                lambda: self._endpoint.delivery(key) in (ConfigDelivery.DELIVERED, ConfigDelivery.ACCEPTED)
            )
        if job.phase == "after":
            job.traced = _until(lambda: any(self._folder.glob(f"rank{rank}_*.json")))
        now = time.time()
        first, last = {
            "none": (start_unix_s - _WARMUP_S, end_unix_s + _WRITING_S),
            "told": (now, max(now, start_unix_s - _WARMUP_S - 1.0)),
            "warm-up": (start_unix_s - _WARMUP_S, start_unix_s),
            "collecting": (start_unix_s, (start_unix_s + end_unix_s) / 2),
            "writing": (end_unix_s, end_unix_s + _WRITING_S),
            "after": (now, now + 1.0),
        }[job.phase]
        job.end_at(first + part * (last - first))
        job.wait()


def _until(holds: Callable[[], bool]) -> bool:
    deadline_s = time.monotonic() + _CAPTURED_WITHIN_S
    while not holds():
        if time.monotonic() >= deadline_s:
            return False
        time.sleep(0.02)
    return True


def result(jobs: Sequence[Job], options: Options) -> dict[str, Any]:
    """What `--json` prints."""
    phases = {}
    for phase in PHASES:
        mine = [job for job in jobs if job.phase == phase]
        if mine:
            phases[phase] = {
                "runs": len(mine),
                "exits": {
                    str(code): n
                    for code, n in sorted(Counter(job.code for job in mine if job.code is not None).items())
                },
                "hung": sum(job.hung for job in mine),
                "slowest_exit_s": round(max(job.exit_s or 0.0 for job in mine), 2),
            }
    return {
        "schema": SCHEMA,
        "torch": jobs[0].torch,
        "device": jobs[0].device,
        "window_s": options.window_s,
        "phases": phases,
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--python", default=os.environ.get("PERFD_TORCH_PYTHON", sys.executable))
    parser.add_argument("--runs", type=int, default=100, help="of each phase")
    parser.add_argument("--at-once", type=int, default=8)
    parser.add_argument("--window", type=float, default=20.0)
    parser.add_argument("--phases", nargs="+", default=list(PHASES), choices=PHASES)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--unguarded", action="store_true", help="as a job that perfd run did not start")
    parser.add_argument("--gpu", action="store_true", help="trace the GPU too")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    options = Options(
        python=arguments.python, window_s=arguments.window, unguarded=arguments.unguarded, gpu=arguments.gpu
    )
    chance = random.Random(arguments.seed)
    todo = list(arguments.phases) * arguments.runs
    jobs: list[Job] = []
    while todo:
        now, todo = todo[: arguments.at_once], todo[arguments.at_once :]
        jobs += batch(now, options, chance)
        print(json.dumps(result(jobs, options)["phases"]), file=sys.stderr, flush=True)
    print(json.dumps(result(jobs, options), indent=None if arguments.json else 2))
    return 0


if __name__ == "__main__":
    sys.exit(main())

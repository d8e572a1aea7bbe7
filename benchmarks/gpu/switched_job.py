"""A training job in which perfd is switched off and on again between blocks of steps.

    torchrun --nproc-per-node 2 benchmarks/gpu/switched_job.py --plan plan.json --out blocks.json

Started by `switched.py`, under `perfd run`. Off, perfd's plugin asks NCCL to be called when an operation
starts and for nothing else, which is how it hears that it is on again, and perfd's own process is stopped.
Without a GPU it runs on CPUs with gloo, to try it: then no plugin is loaded.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import psutil
import torch
import torch.distributed as dist
from perfd_collectors.nccl.segments import RecordingMode, Segment, find_segments
from torch.nn.parallel import DistributedDataParallel
from train import VOCABULARY, Clock, Part, join, loss_against

SMALL_BYTES = 16_384
_SETTLING_SMALL = 500
_MONITOR = "perfd.session.monitor"
_ON = RecordingMode.OPERATIONS | RecordingMode.GPU_TIME


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What each block does; the first steps of a block do not count."""

    layers: int
    hidden: int
    sequence: int
    micro_batch: int
    settling_steps: int
    steps: int
    small_all_reduces: int


class Switch:
    """perfd as this rank reaches it: its plugin in this process, and on rank 0 its process beside the job."""

    def __init__(self, directory: Path) -> None:
        parents = psutil.Process().parents()[1:2] if dist.get_rank() == 0 else []
        beside = [child for parent in parents for child in parent.children()]
        self._monitors = [child for child in beside if _MONITOR in child.cmdline()]
        own = (Segment(path) for path in find_segments(directory))
        self._segment = next((one for one in own if one.process.pid == os.getpid()), None)

    def turn(self, *, on: bool) -> None:
        if self._segment is not None:
            self._segment.set_recording_mode(_ON if on else RecordingMode(0))
        for process in self._monitors:
            with contextlib.suppress(psutil.Error):
                process.send_signal(signal.SIGCONT if on else signal.SIGSTOP)

    @property
    def recorded(self) -> int:
        """Operations that the plugin has recorded in this process."""
        return self._segment.counters().recorded if self._segment else 0


class Training:
    """The model of `train.py`, data parallel."""

    def __init__(self, shape: Shape, device: torch.device) -> None:
        torch.manual_seed(0)
        cuda = device.type == "cuda"
        part = Part(shape.layers, shape.hidden, first=True, last=True)
        part = part.to(device, torch.bfloat16 if cuda else torch.float32)
        ids = [device.index] if cuda else None
        self._model = DistributedDataParallel(part, device_ids=ids, gradient_as_bucket_view=True)
        self._optimizer = torch.optim.AdamW(part.parameters(), lr=1e-4, fused=cuda)
        size = (shape.micro_batch, shape.sequence + 1)
        self._tokens = torch.randint(VOCABULARY, size, device=device)
        self._small = torch.zeros(SMALL_BYTES // 4, device=device)
        self._shape, self._device = shape, device

    def steps_s(self) -> list[float]:
        """The seconds of each settled step, by CUDA events that are read after the last."""
        clock = Clock(self._device)
        clock.step()
        for _ in range(self._shape.settling_steps + self._shape.steps):
            loss_against(self._tokens[:, 1:], self._model(self._tokens[:, :-1])).backward()
            self._optimizer.step()
            self._optimizer.zero_grad(set_to_none=True)
            clock.step()
        self._wait()
        return clock.step_seconds()[self._shape.settling_steps :]

    def small_s(self) -> float:
        """The seconds of one small all-reduce in a long row, of which the host decides how long it takes."""
        for _ in range(_SETTLING_SMALL):
            dist.all_reduce(self._small)
        self._wait()
        begin = time.perf_counter()
        for _ in range(self._shape.small_all_reduces):
            dist.all_reduce(self._small)
        self._wait()
        return (time.perf_counter() - begin) / self._shape.small_all_reduces

    def _wait(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--plan", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    plan = json.loads(args.plan.read_text())
    device = join()
    training = Training(Shape(**plan["shape"]), device)
    training.steps_s()
    # Who ends the job early ends it in whatever block it is: perfd must not stay stopped.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    switch = Switch(Path(os.environ.get("PERFD_NCCL_DIR") or "/dev/shm"))
    reported = []
    try:
        for number, on in enumerate(plan["blocks"]):
            dist.barrier()
            switch.turn(on=on)
            before = switch.recorded
            steps_s, small_s = training.steps_s(), training.small_s()
            reported.append(
                {"on": on, "steps_s": steps_s, "small_s": small_s, "recorded": switch.recorded - before}
            )
            if dist.get_rank() == 0:
                # After each block, so that a job that is ended early still tells.
                args.out.write_text(json.dumps(reported))
                print(f"[switched] {number + 1} of {len(plan['blocks'])}", flush=True)
    finally:
        switch.turn(on=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

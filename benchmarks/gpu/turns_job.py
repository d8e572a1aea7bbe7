"""A training job that changes NCCL's profiler plugin between blocks of steps.

    torchrun --nproc-per-node 2 benchmarks/gpu/turns_job.py --plan plan.json --out blocks.json

NCCL loads its plugin with a process's first communicator and lets go of it with the last one, so each block
has communicators of its own. Started by `plugins_in_turn.py`, which writes the plan: for each block its mode
and the environment of that. Without a GPU it runs on CPUs with gloo, to try it: then no plugin is loaded.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import os
import signal
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import torch
import torch.distributed as dist
from perfd_collectors.nccl.rings import Segment
from perfd_collectors.nccl.segments import find_segments
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from train import VOCABULARY, Clock, Part, loss_against

SETTLING_STEPS = 4
SETTLING_SMALL = 500
SMALL_BYTES = 16_384
"""More than the 8 KiB under which NCCL's Inspector leaves operations out."""
_MONITOR = "perfd.session.monitor"


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What each block does."""

    layers: int
    hidden: int
    sequence: int
    micro_batch: int
    steps: int
    small_all_reduces: int


class Monitor:
    """perfd's own process beside the job, if there is one: it sleeps while another plugin has its turn."""

    def __init__(self) -> None:
        self._processes: list[psutil.Process] = []
        if dist_rank() == 0:
            parents = psutil.Process().parents()
            self._processes = [
                child for parent in parents[1:2] for child in parent.children() if _MONITOR in child.cmdline()
            ]

    def awake(self, wanted: bool) -> None:
        for process in self._processes:
            with contextlib.suppress(psutil.Error):
                process.send_signal(signal.SIGCONT if wanted else signal.SIGSTOP)


def dist_rank() -> int:
    return int(os.environ["RANK"])


@contextlib.contextmanager
def environment(changed: Mapping[str, str]) -> Iterator[None]:
    """Variables that NCCL and its plugins read when they are loaded."""
    before = {name: os.environ.get(name) for name in changed}
    os.environ.update(changed)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def own_segment(directory: str | None) -> Segment | None:
    """What perfd's plugin records of this process, once it was loaded."""
    for path in find_segments(Path(directory)) if directory else ():
        segment = Segment(path)
        if segment.process.pid == os.getpid():
            return segment
        segment.close()
    return None


@contextlib.contextmanager
def joined(store: Any, number: int, device: torch.device) -> Iterator[None]:  # noqa: ANN401  (torch's store)
    """All ranks, in a process group that is this block's own."""
    block = dist.PrefixStore(f"block-{number}", store)
    world = int(os.environ["WORLD_SIZE"])
    if device.type == "cuda":
        dist.init_process_group("nccl", store=block, rank=dist_rank(), world_size=world, device_id=device)
    else:
        dist.init_process_group("gloo", store=block, rank=dist_rank(), world_size=world)
    try:
        yield
    finally:
        _wait(device)
        dist.destroy_process_group()
        gc.collect()


def train_block(part: Part, shape: Shape, device: torch.device) -> list[float]:
    """The seconds of each settled step, by CUDA events that are read after the last."""
    ids = [device.index] if device.type == "cuda" else None
    model = DistributedDataParallel(part, device_ids=ids, gradient_as_bucket_view=True)
    optimizer = torch.optim.SGD(part.parameters(), lr=0.0)
    tokens = torch.randint(VOCABULARY, (shape.micro_batch, shape.sequence + 1), device=device)
    clock = Clock(device)
    clock.step()
    for _ in range(SETTLING_STEPS + shape.steps):
        loss_against(tokens[:, 1:], model(tokens[:, :-1])).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        clock.step()
    _wait(device)
    return clock.step_seconds()[SETTLING_STEPS:]


def small_block(shape: Shape, device: torch.device) -> float:
    """The seconds of one small all-reduce in a long row, of which the host decides how long it takes."""
    small = torch.zeros(SMALL_BYTES // 4, device=device)
    for _ in range(SETTLING_SMALL):
        dist.all_reduce(small)
    _wait(device)
    begin = time.perf_counter()
    for _ in range(shape.small_all_reduces):
        dist.all_reduce(small)
    _wait(device)
    return (time.perf_counter() - begin) / shape.small_all_reduces


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--plan", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    plan = json.loads(args.plan.read_text())
    shape = Shape(**plan["shape"])
    directory = os.environ.get("PERFD_NCCL_DIR")
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    else:
        torch.set_num_threads(1)
    torch.manual_seed(0)
    part: nn.Module = Part(shape.layers, shape.hidden, first=True, last=True)
    part = part.to(device, torch.bfloat16 if cuda else torch.float32)
    store = dist.TCPStore(
        os.environ["MASTER_ADDR"], plan["port"], int(os.environ["WORLD_SIZE"]), dist_rank() == 0
    )
    monitor = Monitor()
    told = []
    recorded = 0
    try:
        for number, block in enumerate(plan["blocks"]):
            monitor.awake(block["mode"] == "perfd")
            with environment(block["environment"]), joined(store, number, device):
                steps_s = train_block(part, shape, device)
                small_s = small_block(shape, device)
            segment = own_segment(directory)
            total = segment.counters().recorded if segment else 0
            told.append(
                {"mode": block["mode"], "steps_s": steps_s, "small_s": small_s, "recorded": total - recorded}
            )
            recorded = total
            if segment:
                segment.close()
            if dist_rank() == 0:
                # After each block, so that a job that is ended early still tells.
                args.out.write_text(json.dumps(told))
                print(f"[turns] {number + 1} of {len(plan['blocks'])}: {told[-1]['mode']}", flush=True)
    finally:
        monitor.awake(True)


if __name__ == "__main__":
    main()

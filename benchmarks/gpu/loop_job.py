"""A plain training loop, sharded by FSDP2 or replicated by DDP, with faults switched on and off by step.

    torchrun --nproc-per-node 4 benchmarks/gpu/loop_job.py --plan plan.json --truth FOLDER --wrap fsdp2
    python benchmarks/gpu/loop_job.py --plan plan.json --truth FOLDER --wrap none

The plan is that of `phases.py`; what was done is written as `phase_injector.py` says. The loop knows nothing
of perfd and prints its loss every few steps, as loops do. Without a GPU it runs on CPUs with gloo, to try it.
"""

from __future__ import annotations

import argparse
import contextlib
import time
from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
from phase_injector import PhaseInjector
from phases import Phase, job_arguments, load, phase_at
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset
from train import VOCABULARY, Part, join, loss_against


class Tokens(Dataset[torch.Tensor]):
    """Random token sequences without end; `slow` says what else a worker does for a sample."""

    def __init__(self, sequence: int, count: int, slow: Callable[[int], None] | None = None) -> None:
        self._sequence, self._count, self._slow = sequence, count, slow

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> torch.Tensor:
        if self._slow is not None:
            self._slow(index)
        generator = torch.Generator().manual_seed(index)
        return torch.randint(VOCABULARY, (self._sequence + 1,), generator=generator)


class SlowSamples:
    """Makes samples slow in the phases of a plan that have slow data; a step reads `per_step` of them."""

    def __init__(self, plan: Sequence[Phase], per_step: int) -> None:
        self._plan, self._per_step = plan, per_step

    def __call__(self, index: int) -> None:
        phase = phase_at(self._plan, 1 + index // self._per_step)
        if phase is not None and phase.kind == "storage":
            time.sleep(phase.size)
        if phase is not None and phase.kind == "decoding":
            until_s = time.thread_time() + phase.size
            while time.thread_time() < until_s:
                pass


def wrapped(part: Part, wrap: str, device: torch.device) -> nn.Module:
    if wrap == "none":
        return part
    if wrap == "ddp":
        ids = [device.index] if device.type == "cuda" else None
        return DistributedDataParallel(part, device_ids=ids, gradient_as_bucket_view=True)
    for block in part.blocks:
        fully_shard(block)
    return fully_shard(part)


def alone() -> torch.device:
    """The device of a process without others."""
    return torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")


def train(args: argparse.Namespace, device: torch.device, injector: PhaseInjector) -> None:
    torch.manual_seed(0)
    part = Part(args.layers, args.hidden, first=True, last=True)
    part = part.to(device, torch.bfloat16 if device.type == "cuda" else torch.float32)
    model = wrapped(part, args.wrap, device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=device.type == "cuda")
    plan = load(args.plan)
    steps, per_step = plan[-1].last_step, args.accumulate * args.micro_batch
    data = Tokens(args.sequence, steps * per_step + 1, SlowSamples(plan, per_step))
    loader = iter(
        DataLoader(data, batch_size=args.micro_batch, num_workers=2, pin_memory=device.type == "cuda")
    )
    injector.slow_loaders()
    for step in range(1, steps + 1):
        injector.begin_step()
        for part_of_step in range(args.accumulate):
            tokens = next(loader).to(device, non_blocking=True)
            injector.begin_micro_batch()
            last = part_of_step == args.accumulate - 1
            unsynced = args.wrap == "ddp" and not last
            with model.no_sync() if unsynced else contextlib.nullcontext():
                loss = loss_against(tokens[:, 1:], model(tokens[:, :-1])) / args.accumulate
                loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if step % args.print_every == 0:
            value = loss.item() * args.accumulate
            if injector.rank == 0:
                print(f"step {step} loss {value:.3f}", flush=True)


def main() -> None:
    parser = job_arguments(__doc__)
    parser.add_argument("--wrap", choices=("fsdp2", "ddp", "none"), required=True)
    parser.add_argument("--print-every", type=int, default=5)
    args = parser.parse_args()
    device = alone() if args.wrap == "none" else join()
    rank = dist.get_rank() if dist.is_initialized() else 0
    injector = PhaseInjector(args.plan, args.truth, rank, micro_batches=args.accumulate)
    try:
        train(args, device, injector)
    finally:
        injector.close()
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()

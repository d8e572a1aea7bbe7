"""Training jobs whose steps differ or whose collectives are unusual, with faults switched on and off by step.

    torchrun --nproc-per-node 2 benchmarks/gpu/varied_job.py --plan plan.json --truth FOLDER --kind checkpoint

The plan is that of `phases.py`; what was done is written as `phase_injector.py` says. The loop knows nothing
of perfd and prints its loss every few steps. Without a GPU it runs on CPUs with gloo, to try it (not
`graphs`).
"""

from __future__ import annotations

import argparse
import os
import random
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from loop_job import wrapped
from phase_injector import PhaseInjector
from phases import job_arguments, load
from schedule import Pipeline
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel
from train import VOCABULARY, Clock, Part, join, loss_against

Step = Callable[[int], torch.Tensor | None]
"""Runs one step, by its number from 1; returns the loss on ranks that have one."""

_EVALUATION_STEPS, _EVALUATION_BATCHES = 25, 15
_CHECKPOINT_STEPS = 30
_GROWTH_STEPS = 40
_CRASH_STEP = 45


class Job:
    """What all kinds share: the arguments, the device, the data, and the injector of this rank."""

    def __init__(self, args: argparse.Namespace, device: torch.device, injector: PhaseInjector) -> None:
        self.args, self.device, self.injector = args, device, injector
        self.dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
        self.lengths = random.Random(dist.get_rank())

    def part(self, *, first: bool = True, last: bool = True, layers: int | None = None) -> Part:
        torch.manual_seed(0)
        part = Part(self.args.layers if layers is None else layers, self.args.hidden, first=first, last=last)
        return part.to(self.device, self.dtype)

    def tokens(self, sequence: int | None = None) -> torch.Tensor:
        shape = (self.args.micro_batch, (sequence or self.args.sequence) + 1)
        return torch.randint(VOCABULARY, shape, device=self.device)

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.AdamW(model.parameters(), lr=1e-4)

    def backward(self, model: nn.Module, tokens: torch.Tensor) -> torch.Tensor:
        """Forward and backward of one micro-batch."""
        self.injector.begin_micro_batch()
        loss = loss_against(tokens[:, 1:], model(tokens[:, :-1]))
        loss.backward()
        return loss.detach()


def ddp_step(job: Job, model: nn.Module, micro_batches: Callable[[int], list[torch.Tensor]]) -> Step:
    """A step of DDP that reduces its gradients at the last micro-batch."""
    optimizer = job.optimizer(model)

    def step(number: int) -> torch.Tensor:
        *others, last = micro_batches(number)
        with model.no_sync():
            for tokens in others:
                job.backward(model, tokens)
        loss = job.backward(model, last)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss

    return step


def evaluation(job: Job) -> Step:
    """Evaluates on all ranks every 25 steps."""
    model = wrapped(job.part(), "ddp", job.device)
    train = ddp_step(job, model, lambda _number: [job.tokens()])

    def step(number: int) -> torch.Tensor | None:
        loss = train(number)
        if number % _EVALUATION_STEPS == 0:
            with torch.no_grad():
                total = torch.zeros((), device=job.device)
                for _ in range(_EVALUATION_BATCHES):
                    tokens = job.tokens()
                    total += loss_against(tokens[:, 1:], model.module(tokens[:, :-1]))
                dist.all_reduce(total)
        return loss

    return step


def checkpoint(job: Job) -> Step:
    """Rank 0 writes model and optimizer every 30 steps while the others wait for it."""
    model = wrapped(job.part(), "ddp", job.device)
    optimizer = job.optimizer(model)
    path = Path(tempfile.gettempdir()) / f"varied-{os.getppid()}.pt"

    def step(number: int) -> torch.Tensor | None:
        loss = job.backward(model, job.tokens())
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if number % _CHECKPOINT_STEPS == 0:
            if dist.get_rank() == 0:
                torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, path)
                path.unlink()
            dist.barrier()
        return loss

    return step


def lengths(job: Job) -> Step:
    """Every rank draws the length of each batch by itself, from an eighth to the whole sequence."""
    model = wrapped(job.part(), "ddp", job.device)

    def batch(_number: int) -> list[torch.Tensor]:
        longest = job.args.sequence
        return [job.tokens(job.lengths.randrange(longest // 8, longest + 1, 8))]

    return ddp_step(job, model, batch)


def growing(job: Job) -> Step:
    """The batch grows: one micro-batch more every 40 steps."""
    model = wrapped(job.part(), "ddp", job.device)
    return ddp_step(job, model, lambda number: [job.tokens() for _ in range(1 + number // _GROWTH_STEPS)])


def offload(job: Job) -> Step:
    """FSDP2 whose parameters and optimizer are in host memory."""
    part = job.part()
    policy = CPUOffloadPolicy(pin_memory=job.device.type == "cuda")
    for block in part.blocks:
        fully_shard(block, offload_policy=policy)
    model = fully_shard(part, offload_policy=policy)
    optimizer = job.optimizer(model)

    def step(_number: int) -> torch.Tensor:
        loss = job.backward(model, job.tokens())
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss

    return step


def tensor(job: Job) -> Step:
    """Tensor parallel by DTensor: the two matrices of each MLP are split over all ranks."""
    part = job.part()
    mesh = init_device_mesh(job.device.type, (dist.get_world_size(),))
    for block in part.blocks:
        parallelize_module(block, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    optimizer = torch.optim.SGD(part.parameters(), lr=1e-4, foreach=False)

    def step(number: int) -> torch.Tensor:
        torch.manual_seed(number)
        loss = job.backward(part, job.tokens())
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss

    return step


def pipeline(job: Job) -> Step:
    """1F1B over all ranks, the first stage with half as many layers again as the last."""
    rank, size = dist.get_rank(), dist.get_world_size()
    layers = job.args.layers * 3 // 5 if rank == 0 else job.args.layers * 2 // 5
    part = job.part(first=rank == 0, last=rank == size - 1, layers=layers)
    optimizer = job.optimizer(part)
    shape = (job.args.micro_batch, job.args.sequence, job.args.hidden)
    like = torch.empty(0, device=job.device, dtype=job.dtype)

    def forward(given: torch.Tensor) -> torch.Tensor:
        job.injector.begin_micro_batch()
        return part(given)

    schedule = Pipeline(forward, range(size), shape, like, Clock(job.device))

    def step(number: int) -> torch.Tensor | None:
        torch.manual_seed(number)
        tokens = [job.tokens() for _ in range(max(job.args.accumulate, 4))]
        loss = schedule.step(
            [one[:, :-1] for one in tokens], lambda logits, at: loss_against(tokens[at][:, 1:], logits)
        )
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss

    return step


def graphs(job: Job) -> Step:
    """The whole step, with the reduction of its gradients, is one CUDA graph that is replayed."""
    part = job.part()
    optimizer = torch.optim.AdamW(part.parameters(), lr=1e-4, capturable=True)
    tokens = job.tokens()

    def eager() -> torch.Tensor:
        loss = loss_against(tokens[:, 1:], part(tokens[:, :-1]))
        loss.backward()
        for parameter in part.parameters():
            dist.all_reduce(parameter.grad, op=dist.ReduceOp.AVG)
        optimizer.step()
        return loss.detach()

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            optimizer.zero_grad(set_to_none=True)
            eager()
    torch.cuda.current_stream().wait_stream(stream)
    optimizer.zero_grad(set_to_none=True)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = eager()

    def step(_number: int) -> torch.Tensor:
        job.injector.begin_micro_batch()
        tokens.copy_(job.tokens())
        graph.replay()
        return loss

    return step


def crash(job: Job) -> Step:
    """Rank 1 dies once at step 45; torchrun starts all again, from the first step."""
    model = DistributedDataParallel(job.part(), device_ids=[job.device.index] if job.device.index else None)
    train = ddp_step(job, model, lambda _number: [job.tokens()])

    def step(number: int) -> torch.Tensor:
        first = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0"
        if first and number == _CRASH_STEP and dist.get_rank() == 1:
            os._exit(7)
        return train(number)

    return step


KINDS: dict[str, Callable[[Job], Step]] = {
    one.__name__: one
    for one in (evaluation, checkpoint, lengths, growing, offload, tensor, pipeline, graphs, crash)
}


def main() -> None:
    parser = job_arguments(__doc__)
    parser.add_argument("--kind", choices=KINDS, required=True)
    parser.add_argument("--print-every", type=int, default=5)
    args = parser.parse_args()
    device = join()
    injector = PhaseInjector(args.plan, args.truth, dist.get_rank(), micro_batches=1)
    last_step = load(args.plan)[-1].last_step
    try:
        run = KINDS[args.kind](Job(args, device, injector))
        for number in range(1, last_step + 1):
            injector.begin_step()
            loss = run(number)
            if loss is not None and number % args.print_every == 0:
                value = loss.item()
                if dist.get_rank() in {0, dist.get_world_size() - 1} and args.print_every < last_step:
                    print(f"{time.strftime('%H:%M:%S')} iter {number} loss {value:.4f}", flush=True)
    finally:
        injector.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

"""Training jobs whose steps vary or whose collectives are unusual, with faults switched on and off by step.

    torchrun --nproc-per-node 2 benchmarks/gpu/varied_job.py --plan plan.json --truth FOLDER --kind checkpoint

`phases.py` describes the plan, `phase_injector.py` the files in FOLDER. The loop does not use perfd, and
prints its loss every few steps. Without a GPU it runs on CPUs with gloo, for a trial (except `graphs`).
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
from train import VOCABULARY, Clock, Part, join, loss_against

Step = Callable[[int], torch.Tensor | None]
"""Runs one step, by its number from 1; returns the loss on ranks that have one."""

_EVALUATION_STEPS, _EVALUATION_BATCHES = 25, 15
_CHECKPOINT_STEPS = 30
_GROWTH_STEPS = 40
_CRASH_STEP = 45
_PROMPT_TOKENS, _NEW_TOKENS = 32, 24
_AVERAGING_STEPS = 8


class Setup:
    """Shared by all kinds: arguments, device, data, and the injector of this rank."""

    def __init__(self, args: argparse.Namespace, device: torch.device, injector: PhaseInjector) -> None:
        self.args, self.device, self.injector = args, device, injector
        self.dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
        self.chance = random.Random(injector.rank)

    def part(self, *, first: bool = True, last: bool = True, layers: int | None = None) -> Part:
        torch.manual_seed(0)
        part = Part(self.args.layers if layers is None else layers, self.args.hidden, first=first, last=last)
        return part.to(self.device, self.dtype)

    def tokens(self, sequence: int | None = None) -> torch.Tensor:
        shape = (self.args.micro_batch, (sequence or self.args.sequence) + 1)
        return torch.randint(VOCABULARY, shape, device=self.device)

    def backward(self, model: nn.Module, tokens: torch.Tensor) -> torch.Tensor:
        """Forward and backward of one micro-batch."""
        self.injector.begin_micro_batch()
        loss = loss_against(tokens[:, 1:], model(tokens[:, :-1]))
        loss.backward()
        return loss.detach()


def updating(optimizer: torch.optim.Optimizer, passes: Step) -> Step:
    """Forward and backward passes of a step, then the optimizer's."""

    def step(number: int) -> torch.Tensor | None:
        loss = passes(number)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss

    return step


def adam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=1e-4)


def ddp_step(setup: Setup, model: nn.Module, micro_batches: Callable[[int], list[torch.Tensor]]) -> Step:
    """A DDP step that reduces gradients in the last micro-batch."""

    def passes(number: int) -> torch.Tensor:
        *others, last = micro_batches(number)
        with model.no_sync():
            for tokens in others:
                setup.backward(model, tokens)
        return setup.backward(model, last)

    return updating(adam(model), passes)


def evaluation(setup: Setup) -> Step:
    """All ranks evaluate every 25 steps."""
    model = wrapped(setup.part(), "ddp", setup.device)
    train = ddp_step(setup, model, lambda _number: [setup.tokens()])

    def step(number: int) -> torch.Tensor | None:
        loss = train(number)
        if number % _EVALUATION_STEPS == 0:
            with torch.no_grad():
                total = torch.zeros((), device=setup.device)
                for _ in range(_EVALUATION_BATCHES):
                    tokens = setup.tokens()
                    total += loss_against(tokens[:, 1:], model.module(tokens[:, :-1]))
                dist.all_reduce(total)
        return loss

    return step


def checkpoint(setup: Setup) -> Step:
    """Rank 0 writes model and optimizer every 30 steps while the others wait for it."""
    model = wrapped(setup.part(), "ddp", setup.device)
    optimizer = adam(model)
    train = updating(optimizer, lambda _number: setup.backward(model, setup.tokens()))
    path = Path(tempfile.gettempdir()) / f"varied-{os.getppid()}.pt"

    def step(number: int) -> torch.Tensor | None:
        loss = train(number)
        if number % _CHECKPOINT_STEPS == 0:
            if dist.get_rank() == 0:
                torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, path)
                path.unlink()
            dist.barrier()
        return loss

    return step


def lengths(setup: Setup) -> Step:
    """Each rank draws the length of its batches, from an eighth of the sequence to all of it."""
    model = wrapped(setup.part(), "ddp", setup.device)

    def batch(_number: int) -> list[torch.Tensor]:
        longest = setup.args.sequence
        return [setup.tokens(setup.chance.randrange(longest // 8, longest + 1, 8))]

    return ddp_step(setup, model, batch)


def growing(setup: Setup) -> Step:
    """The batch grows by one micro-batch every 40 steps."""
    model = wrapped(setup.part(), "ddp", setup.device)
    return ddp_step(setup, model, lambda number: [setup.tokens() for _ in range(1 + number // _GROWTH_STEPS)])


def offload(setup: Setup) -> Step:
    """FSDP2 with parameters and optimizer in host memory."""
    part = setup.part()
    policy = CPUOffloadPolicy(pin_memory=setup.device.type == "cuda")
    for block in part.blocks:
        fully_shard(block, offload_policy=policy)
    model = fully_shard(part, offload_policy=policy)
    return updating(adam(model), lambda _number: setup.backward(model, setup.tokens()))


def tensor(setup: Setup) -> Step:
    """Tensor parallelism with DTensor: the two matrices of each MLP are split over all ranks."""
    part = setup.part()
    mesh = init_device_mesh(setup.device.type, (dist.get_world_size(),))
    for block in part.blocks:
        parallelize_module(block, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})

    def passes(number: int) -> torch.Tensor:
        # All ranks of a tensor group read the same data.
        torch.manual_seed(number)
        return setup.backward(part, setup.tokens())

    return updating(torch.optim.SGD(part.parameters(), lr=1e-4, foreach=False), passes)


def pipeline(setup: Setup) -> Step:
    """1F1B over all ranks; the first stage has 1.5 times as many layers as the last."""
    rank, size = dist.get_rank(), dist.get_world_size()
    layers = setup.args.layers * 3 // 5 if rank == 0 else setup.args.layers * 2 // 5
    part = setup.part(first=rank == 0, last=rank == size - 1, layers=layers)
    shape = (setup.args.micro_batch, setup.args.sequence, setup.args.hidden)
    like = torch.empty(0, device=setup.device, dtype=setup.dtype)

    def forward(given: torch.Tensor) -> torch.Tensor:
        setup.injector.begin_micro_batch()
        return part(given)

    schedule = Pipeline(forward, range(size), shape, like, Clock(setup.device))

    def passes(number: int) -> torch.Tensor | None:
        # The first stage reads the data, the last one its targets.
        torch.manual_seed(number)
        tokens = [setup.tokens() for _ in range(max(setup.args.accumulate, 4))]
        return schedule.step(
            [one[:, :-1] for one in tokens], lambda logits, at: loss_against(tokens[at][:, 1:], logits)
        )

    return updating(adam(part), passes)


def graphs(setup: Setup) -> Step:
    """Each step, including the reduction of gradients, replays one CUDA graph."""
    part = setup.part()
    optimizer = torch.optim.AdamW(part.parameters(), lr=1e-4, capturable=True)
    tokens = setup.tokens()

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
        setup.injector.begin_micro_batch()
        tokens.copy_(setup.tokens())
        graph.replay()
        return loss

    return step


def crash(setup: Setup) -> Step:
    """Rank 1 exits once, at step 45; torchrun restarts all ranks from the first step."""
    model = wrapped(setup.part(), "ddp", setup.device)
    train = ddp_step(setup, model, lambda _number: [setup.tokens()])

    def step(number: int) -> torch.Tensor:
        first = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0"
        if first and number == _CRASH_STEP and dist.get_rank() == 1:
            os._exit(7)
        return train(number)

    return step


def rollouts(setup: Setup) -> Step:
    """As reinforcement learning: each rank generates text, all gather their rewards, then train with DDP."""
    model = wrapped(setup.part(), "ddp", setup.device)
    train = ddp_step(setup, model, lambda _number: [setup.tokens()])
    rewards = torch.zeros(dist.get_world_size(), device=setup.device)

    def step(number: int) -> torch.Tensor | None:
        with torch.no_grad():
            text = setup.tokens(_PROMPT_TOKENS)[:, :-1]
            for _ in range(setup.chance.randrange(_NEW_TOKENS // 2, _NEW_TOKENS + 1)):
                text = torch.cat([text, model.module(text)[:, -1:].argmax(-1)], dim=1)
            dist.all_gather_into_tensor(rewards, text.float().mean().reshape(1))
        return train(number)

    return step


def local(setup: Setup) -> Step:
    """Local SGD: ranks train alone, and average their parameters every 8 steps."""
    model = setup.part()
    train = updating(adam(model), lambda _number: setup.backward(model, setup.tokens()))

    def step(number: int) -> torch.Tensor | None:
        loss = train(number)
        if number % _AVERAGING_STEPS == 0:
            for parameter in model.parameters():
                dist.all_reduce(parameter.data)
                parameter.data /= dist.get_world_size()
        return loss

    return step


def adversarial(setup: Setup) -> Step:
    """Two DDP models in turn, as generator and discriminator; the second is twice as large."""
    sizes = (setup.args.layers // 3, setup.args.layers * 2 // 3)
    models = [wrapped(setup.part(layers=layers), "ddp", setup.device) for layers in sizes]
    one, other = (ddp_step(setup, model, lambda _number: [setup.tokens()]) for model in models)

    def step(number: int) -> torch.Tensor | None:
        one(number)
        return other(number)

    return step


KINDS: dict[str, Callable[[Setup], Step]] = {
    one.__name__: one
    for one in (
        *(evaluation, checkpoint, lengths, growing, offload, tensor, pipeline, graphs, crash),
        *(rollouts, local, adversarial),
    )
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
        run = KINDS[args.kind](Setup(args, device, injector))
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

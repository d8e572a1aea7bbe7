"""Loops of `novel_job.py` with habits of users that the other scripts do not have.

Shapes compiled anew in the middle, a profiler of the job's own, an evaluation by one rank, parameters
exchanged with a neighbor, and as many micro-batches as fit a budget of tokens.
"""

from __future__ import annotations

import contextlib
import random
import shutil
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from loop_job import wrapped
from novel_models import Setup
from torch import nn
from torch.profiler import profile, schedule
from train import loss_against
from varied_job import Step, adam, ddp_step, updating

_SHAPE_STEPS = 45
_SHAPES = (0.5, 0.75, 1.0)
"""Of the sequence, each for as many steps."""
_PROFILED_EVERY, _PROFILED_STEPS = 40, 3
_ALONE_STEPS, _ALONE_BATCHES = 30, 24
_MOST_MICRO_BATCHES = 8


def recompiled(setup: Setup) -> Step:
    """The whole model is compiled for each length; a length that is new stops all ranks to compile."""
    part = setup.part()
    if setup.device.type == "cuda":
        part.compile(dynamic=False)
    model = wrapped(part, "ddp", setup.device)

    def batch(number: int) -> list[torch.Tensor]:
        at = min(number // _SHAPE_STEPS, len(_SHAPES) - 1)
        return [setup.tokens(int(setup.args.sequence * _SHAPES[at]))]

    return ddp_step(setup, model, batch)


def profiled(setup: Setup) -> Step:
    """All ranks profile three of every forty steps with PyTorch's profiler, and write a trace of each."""
    model = wrapped(setup.part(), "fsdp2", setup.device)
    folder = Path(tempfile.mkdtemp(prefix="novel-profiled-"))
    stack = contextlib.ExitStack()
    profiler = stack.enter_context(
        profile(
            schedule=schedule(
                wait=_PROFILED_EVERY - _PROFILED_STEPS - 1, warmup=1, active=_PROFILED_STEPS, repeat=0
            ),
            on_trace_ready=lambda one: one.export_chrome_trace(str(folder / "trace.json")),
            record_shapes=True,
            with_stack=True,
        )
    )
    train = updating(adam(model), lambda _number: setup.backward(model, setup.tokens()))

    def step(number: int) -> torch.Tensor | None:
        loss = train(number)
        profiler.step()
        if (folder / "trace.json").exists():
            shutil.rmtree(folder)
            folder.mkdir()
        return loss

    return step


def evaluatedalone(setup: Setup) -> Step:
    """Rank 0 evaluates every thirty steps while the others wait for it at a barrier."""
    model = wrapped(setup.part(), "ddp", setup.device)
    train = ddp_step(setup, model, lambda _number: [setup.tokens()])

    def step(number: int) -> torch.Tensor | None:
        loss = train(number)
        if number % _ALONE_STEPS == 0:
            if dist.get_rank() == 0:
                with torch.no_grad():
                    for _ in range(_ALONE_BATCHES):
                        tokens = setup.tokens()
                        loss_against(tokens[:, 1:], model.module(tokens[:, :-1])).item()
            dist.barrier()
        return loss

    return step


def gossiped(setup: Setup) -> Step:
    """No reduction at all: each rank averages its parameters with those of a neighbor after each step."""
    part = setup.part()
    rank, size = dist.get_rank(), dist.get_world_size()
    train = updating(adam(part), lambda _number: setup.backward(part, setup.tokens()))

    def step(number: int) -> torch.Tensor | None:
        loss = train(number)
        with torch.no_grad():
            mine = nn.utils.parameters_to_vector(part.parameters())
            theirs = torch.empty_like(mine)
            exchanges = [
                dist.P2POp(dist.isend, mine, (rank + 1) % size),
                dist.P2POp(dist.irecv, theirs, (rank - 1) % size),
            ]
            for request in dist.batch_isend_irecv(exchanges):
                request.wait()
            nn.utils.vector_to_parameters((mine + theirs) / 2, part.parameters())
        return loss

    return step


def budgeted(setup: Setup) -> Step:
    """As many micro-batches as fit a budget of tokens: another number in each step, the same on all ranks."""
    model = wrapped(setup.part(), "ddp", setup.device)

    def batches(number: int) -> list[torch.Tensor]:
        count = random.Random(number).randrange(1, _MOST_MICRO_BATCHES + 1)
        return [setup.tokens(setup.args.sequence // 2) for _ in range(count)]

    return ddp_step(setup, model, batches)

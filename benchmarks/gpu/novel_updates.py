"""Loops of `novel_job.py` whose parameters are updated, saved or left out in ways that the others lack."""

from __future__ import annotations

import random
import tempfile
import threading
from pathlib import Path

import torch
import torch.distributed as dist
from loop_job import wrapped
from novel_models import Setup
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from train import Part, loss_against
from varied_job import Step, adam, updating

_ORTHOGONALIZING_PASSES = 5
_COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""Of the polynomial that Muon iterates."""
_SAVING_STEPS = 20
_KEPT_RATIO = 0.8
"""How many of the layers a step trains."""


def _orthogonalized(matrix: torch.Tensor) -> torch.Tensor:
    one, two, three = _COEFFICIENTS
    x = matrix.T if matrix.shape[0] > matrix.shape[1] else matrix
    x = x / (x.norm() + 1e-7)
    for _ in range(_ORTHOGONALIZING_PASSES):
        square = x @ x.T
        x = one * x + (two * square + three * square @ square) @ x
    return x.T if matrix.shape[0] > matrix.shape[1] else x


class _Muon(torch.optim.Optimizer):
    """Each rank orthogonalizes every n-th matrix, and all ranks gather the results."""

    def __init__(self, matrices: list[nn.Parameter]) -> None:
        super().__init__(matrices, {"lr": 1e-3, "momentum": 0.95})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        del closure
        rank, size = dist.get_rank(), dist.get_world_size()
        for group in self.param_groups:
            by_shape: dict[torch.Size, list[nn.Parameter]] = {}
            for one in group["params"]:
                by_shape.setdefault(one.shape, []).append(one)
            for shape, matrices in by_shape.items():
                for at in range(0, len(matrices), size):
                    turn = matrices[at : at + size]
                    updates = [torch.empty(shape, dtype=one.dtype, device=one.device) for one in turn]
                    updates += [torch.empty_like(updates[0])] * (size - len(turn))
                    own = turn[rank] if rank < len(turn) else turn[0]
                    held = self.state[own].setdefault("momentum", torch.zeros_like(own))
                    held.mul_(group["momentum"]).add_(own.grad)
                    dist.all_gather(updates, _orthogonalized(held))
                    for parameter, update in zip(turn, updates, strict=False):
                        parameter.add_(update, alpha=-group["lr"])


def muon(setup: Setup) -> Step:
    """DDP whose ranks share the work of an optimizer that orthogonalizes matrices."""
    model = wrapped(setup.part(), "ddp", setup.device)
    matrices = [one for name, one in model.named_parameters() if one.ndim == 2 and ".blocks." in name]
    others = [one for name, one in model.named_parameters() if one.ndim != 2 or ".blocks." not in name]
    rest = torch.optim.AdamW(others, lr=1e-4)
    train = updating(_Muon(matrices), lambda _number: setup.backward(model, setup.tokens()))

    def step(number: int) -> torch.Tensor | None:
        loss = train(number)
        rest.step()
        rest.zero_grad(set_to_none=True)
        return loss

    return step


def owned(setup: Setup) -> Step:
    """Gradients are reduced to the rank that owns the parameter, which updates and broadcasts it."""
    part = setup.part()
    rank, size = dist.get_rank(), dist.get_world_size()
    parameters = list(part.parameters())
    optimizer = torch.optim.AdamW(parameters[rank::size], lr=1e-4)

    def step(_number: int) -> torch.Tensor | None:
        loss = setup.backward(part, setup.tokens())
        for at, one in enumerate(parameters):
            dist.reduce(one.grad, at % size)
        optimizer.step()
        part.zero_grad(set_to_none=True)
        with torch.no_grad():
            for at, one in enumerate(parameters):
                dist.broadcast(one, at % size)
        return loss

    return step


def background(setup: Setup) -> Step:
    """Every 20 steps all ranks copy their parameters, and a thread of rank 0 writes them while it trains."""
    model = wrapped(setup.part(), "ddp", setup.device)
    train = updating(adam(model), lambda _number: setup.backward(model, setup.tokens()))
    path = Path(tempfile.gettempdir()) / "novel-background.pt"
    writers: list[threading.Thread] = []

    def step(number: int) -> torch.Tensor | None:
        loss = train(number)
        if number % _SAVING_STEPS == 0:
            copy = {name: one.cpu() for name, one in model.module.state_dict().items()}
            if dist.get_rank() == 0:
                writers.append(threading.Thread(target=torch.save, args=(copy, path), daemon=True))
                writers[-1].start()
        return loss

    return step


class _Dropped(nn.Module):
    """Stochastic depth."""

    def __init__(self, part: Part) -> None:
        super().__init__()
        self.part = part
        self.kept = [True] * len(part.blocks)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.part.embedding(tokens)
        for block, kept in zip(self.part.blocks, self.kept, strict=True):
            x = block(x) if kept else x
        return self.part.head(x)


def dropped(setup: Setup) -> Step:
    """A step leaves out some layers, the same on all ranks; DDP looks for unused parameters."""
    network = _Dropped(setup.part())
    ids = [setup.device.index] if setup.device.type == "cuda" else None
    model = DistributedDataParallel(network, device_ids=ids, find_unused_parameters=True)

    def passes(number: int) -> torch.Tensor:
        chance = random.Random(number)
        network.kept = [chance.random() < _KEPT_RATIO for _ in network.kept]
        return setup.backward(model, setup.tokens())

    return updating(adam(model), passes)


def preferred(setup: Setup) -> Step:
    """DPO: a pair of answers through the policy and a frozen reference, and metrics averaged each step."""
    reference = setup.part().requires_grad_(requires_grad=False)
    model = wrapped(setup.part(), "ddp", setup.device)

    def passes(_number: int) -> torch.Tensor:
        setup.injector.begin_micro_batch()
        chosen, refused = setup.tokens(), setup.tokens()
        both = torch.cat([chosen, refused])
        with torch.no_grad():
            expected = _likelihood(reference, both)
        gained = _likelihood(model, both) - expected
        margin = gained[: len(chosen)] - gained[len(chosen) :]
        loss = -functional.logsigmoid(0.1 * margin).mean()
        loss.backward()
        metrics = [loss.detach(), (margin > 0).float().mean(), margin.mean().detach()]
        for one in metrics:
            dist.all_reduce(one)
        return metrics[0] / dist.get_world_size()

    return updating(adam(model), passes)


def _likelihood(model: nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    """Of each sequence, per token."""
    logits = model(tokens[:, :-1])
    return torch.stack([-loss_against(own[1:], one[None]) for own, one in zip(tokens, logits, strict=True)])

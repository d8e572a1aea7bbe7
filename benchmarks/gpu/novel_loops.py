"""Loops of `novel_job.py` that do more than train: they act, serve, draw neighbors, or play."""

from __future__ import annotations

import numpy as np
import torch
import torch.distributed as dist
from loop_job import wrapped
from novel_models import Setup
from torch import nn
from torch.nn import functional
from train import loss_against
from varied_job import Step, adam, updating

_PROMPT_TOKENS, _ACTED_TOKENS, _EPOCHS = 128, 16, 4
_SERVED_TOKENS = 32
_NODES, _NEIGHBORS, _SEEDS, _FEATURES = 2_000_000, 16, 4096, 256
_ENVIRONMENTS, _ROLLOUT, _OBSERVED, _ACTIONS, _MINIBATCHES = 4096, 32, 128, 16, 4


def actors(setup: Setup) -> Step:
    """Rank 0 writes text, the last rank learns from it and sends its parameters back."""
    part = setup.part()
    rank, learner = dist.get_rank(), dist.get_world_size() - 1
    optimizer = adam(part)
    parameters = list(part.parameters())
    text = torch.empty(
        setup.args.micro_batch, _PROMPT_TOKENS + _ACTED_TOKENS, dtype=torch.long, device=setup.device
    )

    def step(_number: int) -> torch.Tensor | None:
        loss = None
        setup.injector.begin_micro_batch()
        if rank == 0:
            with torch.no_grad():
                written = setup.tokens(_PROMPT_TOKENS)[:, :-1]
                for _ in range(_ACTED_TOKENS):
                    written = torch.cat([written, part(written)[:, -1:].argmax(-1)], dim=1)
            dist.send(written.contiguous(), learner)
        if rank == learner:
            dist.recv(text, 0)
            for _ in range(_EPOCHS):
                loss = loss_against(text[:, 1:], part(text[:, :-1]))
                loss.backward()
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)
        flat = torch.cat([one.detach().reshape(-1) for one in parameters])
        dist.broadcast(flat, learner)
        with torch.no_grad():
            for one, new in zip(parameters, flat.split([one.numel() for one in parameters]), strict=True):
                one.copy_(new.view_as(one))
        return None if loss is None else loss.detach()

    return step


def serving(setup: Setup) -> Step:
    """A tensor-parallel model that writes token after token: two all-reduces in each layer."""
    part = setup.part(layers=0).eval()
    hidden, world = setup.args.hidden, dist.get_world_size()
    with setup.device:
        layers = [
            [one.to(setup.dtype) for one in (nn.Linear(hidden, width), nn.Linear(width, hidden))]
            for width in [4 * hidden // world] * setup.args.layers
        ]

    @torch.no_grad()
    def forward(tokens: torch.Tensor) -> torch.Tensor:
        x = part.embedding(tokens)
        for up, down in layers:
            for _ in range(2):
                y = down(functional.gelu(up(x)))
                dist.all_reduce(y)
                x = functional.layer_norm(x + y, (hidden,))
        return part.head(x[:, -1:]).argmax(-1)

    def step(number: int) -> torch.Tensor:
        torch.manual_seed(number)
        setup.injector.begin_micro_batch()
        token = forward(setup.tokens(_PROMPT_TOKENS))
        for _ in range(_SERVED_TOKENS):
            token = forward(token)
            token.tolist()
        return token.float().mean()

    return step


def sampled(setup: Setup) -> Step:
    """A graph network whose neighbors the training thread itself draws and gathers."""
    chance = np.random.default_rng(dist.get_rank())
    neighbors = chance.integers(_NODES, size=(_NODES // 10, _NEIGHBORS), dtype=np.int64)
    features = chance.standard_normal((_NODES // 10, _FEATURES), dtype=np.float32)
    torch.manual_seed(0)
    width = setup.args.hidden
    network = nn.Sequential(
        nn.Linear(2 * _FEATURES, width), nn.ReLU(),
        *(one for _ in range(setup.args.layers) for one in (nn.Linear(width, width), nn.ReLU())),
        nn.Linear(width, 32),
    ).to(setup.device)  # fmt: skip
    model = wrapped(network, "ddp", setup.device)

    def passes(_number: int) -> torch.Tensor:
        setup.injector.begin_micro_batch()
        seeds = chance.integers(_NODES // 10, size=_SEEDS)
        around = neighbors[seeds] % (_NODES // 10)
        gathered = features[around].mean(1)
        inputs = torch.from_numpy(np.concatenate([features[seeds], gathered], axis=1)).to(setup.device)
        loss = model(inputs).square().mean()
        loss.backward()
        return loss.detach()

    return updating(adam(model), passes)


def policy(setup: Setup) -> Step:
    """Environments on the host, then several passes over what was seen in them, each reduced."""
    chance = np.random.default_rng(dist.get_rank())
    torch.manual_seed(0)
    width = setup.args.hidden
    network = nn.Sequential(
        nn.Linear(_OBSERVED, width), nn.Tanh(),
        *(one for _ in range(setup.args.layers) for one in (nn.Linear(width, width), nn.Tanh())),
        nn.Linear(width, _ACTIONS),
    ).to(setup.device)  # fmt: skip
    model = wrapped(network, "ddp", setup.device)
    moves = chance.standard_normal((_ACTIONS, _OBSERVED), dtype=np.float32)
    optimizer = adam(model)

    def step(_number: int) -> torch.Tensor:
        setup.injector.begin_micro_batch()
        state = chance.standard_normal((_ENVIRONMENTS, _OBSERVED), dtype=np.float32)
        seen = []
        with torch.no_grad():
            for _ in range(_ROLLOUT):
                seen.append(torch.from_numpy(state).to(setup.device))
                chosen = network(seen[-1]).argmax(-1).cpu().numpy()
                state = np.tanh(state + 0.1 * moves[chosen])
        observed = torch.cat(seen)
        for _ in range(_EPOCHS):
            for part in observed.chunk(_MINIBATCHES):
                loss = model(part).square().mean()
                loss.backward()
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    return step

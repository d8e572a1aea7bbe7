"""Loops of `novel_job.py` that communicate in other ways than to reduce gradients once a step over NCCL."""

from __future__ import annotations

import torch
import torch.distributed as dist
from loop_job import wrapped
from novel_models import Setup
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel
from train import loss_against
from varied_job import Step, adam, updating

_CRITIC_UPDATES = 3
_MOVING_RATE, _SYNCHRONIZED_STEPS = 0.01, 10


def broadcasted(setup: Setup) -> Step:
    """Rank 0 alone reads the data, and sends each rank its part."""
    model = wrapped(setup.part(), "ddp", setup.device)

    def passes(_number: int) -> torch.Tensor:
        shape = (dist.get_world_size(), setup.args.micro_batch, setup.args.sequence + 1)
        tokens = torch.empty(shape, dtype=torch.long, device=setup.device)
        setup.injector.begin_micro_batch()
        if dist.get_rank() == 0:
            tokens.copy_(torch.stack([setup.tokens() for _ in range(shape[0])]))
        dist.broadcast(tokens, 0)
        return _trained(model, tokens[dist.get_rank()])

    return updating(adam(model), passes)


def critics(setup: Setup) -> Step:
    """Three updates of a critic for each one of a generator that is as large; all reduce their gradients."""
    generator = wrapped(setup.part(), "ddp", setup.device)
    critic = wrapped(setup.part(layers=setup.args.layers // 2), "ddp", setup.device)
    optimizers = [adam(generator), adam(critic)]

    def step(_number: int) -> torch.Tensor:
        for _ in range(_CRITIC_UPDATES):
            _trained(critic, setup.tokens())
            optimizers[1].step()
            optimizers[1].zero_grad(set_to_none=True)
        loss = setup.backward(generator, setup.tokens())
        optimizers[0].step()
        optimizers[0].zero_grad(set_to_none=True)
        return loss

    return step


def hosted(setup: Setup) -> Step:
    """Gradients are reduced by the hosts, over gloo: NCCL is not used at all."""
    ids = [setup.device.index] if setup.device.type == "cuda" else None
    model = DistributedDataParallel(
        setup.part(), device_ids=ids, process_group=dist.new_group(backend="gloo"), bucket_cap_mb=200
    )
    return updating(adam(model), lambda _number: setup.backward(model, setup.tokens()))


def smoothed(setup: Setup) -> Step:
    """A moving average of the parameters, which rank 0 sends to all every 10 steps."""
    model = wrapped(setup.part(), "ddp", setup.device)
    average = [one.detach().clone() for one in model.parameters()]
    train = updating(adam(model), lambda _number: setup.backward(model, setup.tokens()))

    def step(number: int) -> torch.Tensor | None:
        loss = train(number)
        with torch.no_grad():
            torch._foreach_lerp_(average, list(model.parameters()), _MOVING_RATE)
            if number % _SYNCHRONIZED_STEPS == 0:
                for one in average:
                    dist.broadcast(one, 0)
        return loss

    return step


def hybrid(setup: Setup) -> Step:
    """FSDP2 over pairs of ranks, replicated over the pairs, as within and between nodes."""
    model = setup.part()
    mesh = _pairs(setup, "replicas", "shards")
    for one in (*model.blocks, model):
        fully_shard(one, mesh=mesh)
    return updating(adam(model), lambda _number: setup.backward(model, setup.tokens()))


def grid(setup: Setup) -> Step:
    """FSDP2 over pairs of ranks in one dimension, tensor parallelism of each MLP in the other."""
    model = setup.part()
    mesh = _pairs(setup, "data", "tensor")
    for block in model.blocks:
        parallelize_module(block, mesh["tensor"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
    for one in (*model.blocks, model):
        fully_shard(one, mesh=mesh["data"])

    def passes(number: int) -> torch.Tensor:
        # Both ranks of a tensor group read the same data.
        torch.manual_seed(number * dist.get_world_size() + mesh["data"].get_local_rank())
        return setup.backward(model, setup.tokens())

    return updating(torch.optim.SGD(model.parameters(), lr=1e-4, foreach=False), passes)


def _pairs(setup: Setup, *names: str) -> DeviceMesh:
    shape = (dist.get_world_size() // 2, 2)
    return init_device_mesh(setup.device.type, shape, mesh_dim_names=names)


def _trained(model: nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    """Forward and backward of a batch before which nothing is switched on."""
    loss = loss_against(tokens[:, 1:], model(tokens[:, :-1]))
    loss.backward()
    return loss.detach()

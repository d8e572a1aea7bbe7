"""Loops of `novel_job.py` as users write them every day, and that the other scripts do not have.

Statistics reduced within the forward pass, compressed gradients, checks of overflow, metrics gathered as
Python objects, data from a thread, one process with all GPUs, and a job that lasts for many minutes.
"""

from __future__ import annotations

import queue
import shutil
import tempfile
import threading
from pathlib import Path

import torch
import torch.distributed as dist
from loop_job import Tokens, wrapped
from novel_models import Setup
from torch import nn
from torch.distributed import checkpoint as sharded_checkpoint
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as power_sgd
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
from train import loss_against
from varied_job import Step, adam, ddp_step, updating

_CLASSES, _PIXELS, _STAGES = 1000, 64, 4
_COMPRESSED_RANK, _UNCOMPRESSED_STEPS = 4, 10
_SCALED_BY, _SHORTEST = 1024.0, 64
_WAITING_BATCHES = 2
_LASTING_EVALUATION_STEPS, _LASTING_SAVING_STEPS, _EVALUATION_BATCHES = 150, 400, 10


def normalized(setup: Setup) -> Step:
    """A convolutional network with batch statistics of all ranks: small all-reduces in each layer."""
    torch.manual_seed(0)
    width = setup.args.hidden // 8
    layers: list[nn.Module] = [nn.Conv2d(3, width, 3, padding=1)]
    for stage in range(_STAGES):
        for _ in range(setup.args.layers // _STAGES):
            layers += [nn.BatchNorm2d(width), nn.ReLU(), nn.Conv2d(width, width, 3, padding=1)]
        if stage < _STAGES - 1:
            layers += [nn.Conv2d(width, 2 * width, 2, stride=2)]
            width *= 2
    network = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, _CLASSES))
    cuda = setup.device.type == "cuda"
    if cuda:
        network = nn.SyncBatchNorm.convert_sync_batchnorm(network)
    model = wrapped(network.to(setup.device), "ddp", setup.device)  # type: ignore[arg-type]

    def passes(_number: int) -> torch.Tensor:
        pictures = torch.randn(setup.args.micro_batch, 3, _PIXELS, _PIXELS, device=setup.device)
        classes = torch.randint(_CLASSES, (setup.args.micro_batch,), device=setup.device)
        setup.injector.begin_micro_batch()
        with torch.autocast(setup.device.type, torch.bfloat16, enabled=cuda):
            loss = functional.cross_entropy(model(pictures), classes)
        loss.backward()
        return loss.detach()

    return updating(torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9), passes)


def compressed(setup: Setup) -> Step:
    """Gradients are compressed by PowerSGD: two small all-reduces for each bucket."""
    part = setup.part()
    ids = [setup.device.index] if setup.device.type == "cuda" else None
    model = DistributedDataParallel(part, device_ids=ids)
    state = power_sgd.PowerSGDState(
        None, matrix_approximation_rank=_COMPRESSED_RANK, start_powerSGD_iter=_UNCOMPRESSED_STEPS
    )
    model.register_comm_hook(state, power_sgd.powerSGD_hook)
    return ddp_step(setup, model, lambda _number: [setup.tokens()])


def scaled(setup: Setup) -> Step:
    """The host checks in each step, over all ranks, whether a gradient overflowed, and clips their norm."""
    model = wrapped(setup.part(), "fsdp2", setup.device)
    optimizer = adam(model)

    def step(_number: int) -> torch.Tensor:
        tokens = setup.tokens()
        setup.injector.begin_micro_batch()
        loss = loss_against(tokens[:, 1:], model(tokens[:, :-1]))
        (loss * _SCALED_BY).backward()
        overflowed = torch.zeros((), device=setup.device)
        for one in model.parameters():
            if one.grad is not None:
                local = one.grad.to_local() if hasattr(one.grad, "to_local") else one.grad
                local.div_(_SCALED_BY)
                overflowed += (~local.isfinite()).any()
        dist.all_reduce(overflowed)
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        if not overflowed.item() and float(norm) > 0.0:
            optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    return step


def reported(setup: Setup) -> Step:
    """Metrics of all ranks are gathered as Python objects in each step, after a barrier."""
    model = wrapped(setup.part(), "ddp", setup.device)
    train = ddp_step(setup, model, lambda _number: [setup.tokens()])

    def step(number: int) -> torch.Tensor | None:
        loss = train(number)
        metrics = {"step": number, "loss": 0.0 if loss is None else loss.item(), "rank": dist.get_rank()}
        gathered: list[object] = [None] * dist.get_world_size()
        dist.all_gather_object(gathered, metrics)
        dist.barrier()
        return loss

    return step


def threaded(setup: Setup) -> Step:
    """A thread of the job's own makes batches and copies them, in place of a PyTorch loader."""
    model = wrapped(setup.part(), "ddp", setup.device)
    waiting: queue.Queue[torch.Tensor] = queue.Queue(_WAITING_BATCHES)

    def produce() -> None:
        generator = torch.Generator().manual_seed(dist.get_rank())
        shape = (setup.args.micro_batch, setup.args.sequence + 1)
        while True:
            setup.injector.before_batch()
            waiting.put(torch.randint(32_000, shape, generator=generator))

    threading.Thread(target=produce, daemon=True).start()
    return ddp_step(setup, model, lambda _number: [waiting.get().to(setup.device, non_blocking=True)])


def recurrent(setup: Setup) -> Step:
    """A recurrent network over sequences of the length that each step draws; many small launches."""
    torch.manual_seed(0)
    hidden = setup.args.hidden

    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(8_000, hidden)
            self.cells = nn.ModuleList(nn.GRUCell(hidden, hidden) for _ in range(setup.args.layers))
            self.head = nn.Linear(hidden, 8_000)

        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            states = [torch.zeros(len(tokens), hidden, device=tokens.device) for _ in self.cells]
            outputs = []
            for embedded in self.embedding(tokens).unbind(1):
                x = embedded
                for at, cell in enumerate(self.cells):
                    states[at] = x = cell(x, states[at])
                outputs.append(x)
            return self.head(torch.stack(outputs, 1))

    model = wrapped(Recurrent().to(setup.device), "ddp", setup.device)  # type: ignore[arg-type]

    def passes(_number: int) -> torch.Tensor:
        length = setup.chance.randrange(_SHORTEST, 2 * _SHORTEST)
        tokens = torch.randint(8_000, (setup.args.micro_batch, length + 1), device=setup.device)
        setup.injector.begin_micro_batch()
        loss = functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        return loss.detach()

    return updating(adam(model), passes)


def replicated(setup: Setup) -> Step:
    """One process with all GPUs: `nn.DataParallel` copies the model to each of them in every step."""
    part = setup.part()
    model = nn.DataParallel(part) if setup.device.type == "cuda" else part
    return updating(adam(part), lambda _number: setup.backward(model, setup.tokens()))


def lasting(setup: Setup) -> Step:
    """FSDP2 for many minutes, with an evaluation every 150 steps and a checkpoint every 400."""
    model = wrapped(setup.part(), "fsdp2", setup.device)
    optimizer = adam(model)
    folder = Path(tempfile.gettempdir()) / "novel-lasting"
    loader = DataLoader(
        Tokens(setup.args.sequence, 10**8), batch_size=setup.args.micro_batch, num_workers=2, pin_memory=True
    )
    setup.injector.slow_loaders()
    batches = iter(loader)
    train = updating(
        optimizer,
        lambda _number: setup.backward(model, next(batches).to(setup.device, non_blocking=True)),
    )

    def step(number: int) -> torch.Tensor | None:
        loss = train(number)
        if number % _LASTING_EVALUATION_STEPS == 0:
            evaluate(setup, model, _EVALUATION_BATCHES)
        if number % _LASTING_SAVING_STEPS == 0:
            save_shards(model, optimizer, folder)
        return loss

    return step


def evaluate(setup: Setup, model: nn.Module, batches: int) -> None:
    """All ranks evaluate, and reduce their loss."""
    model.eval()
    with torch.no_grad():
        total = torch.zeros((), device=setup.device)
        for _ in range(batches):
            tokens = setup.tokens()
            total += loss_against(tokens[:, 1:], model(tokens[:, :-1]))
        dist.all_reduce(total)
    model.train()


def save_shards(model: nn.Module, optimizer: torch.optim.Optimizer, folder: Path) -> None:
    """All ranks write their shards into a folder, which is removed again."""
    states = dict(zip(("model", "optimizer"), get_state_dict(model, optimizer), strict=True))
    sharded_checkpoint.save(states, checkpoint_id=folder)
    dist.barrier()
    if dist.get_rank() == 0:
        shutil.rmtree(folder)

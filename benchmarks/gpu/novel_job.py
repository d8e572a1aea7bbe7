"""Training jobs of kinds that the other scripts do not have, with faults switched on and off by step.

    torchrun --nproc-per-node 2 benchmarks/gpu/novel_job.py --plan plan.json --truth FOLDER --kind scheduled

`phases.py` describes the plan, `phase_injector.py` the files in FOLDER. The loop does not use perfd, and
prints its loss every few steps. Without a GPU it runs on CPUs with gloo, for a trial.
"""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
import torch.distributed as dist
from loop_job import Tokens, wrapped
from novel_everyday import (
    compressed,
    evaluate,
    lasting,
    normalized,
    recurrent,
    replicated,
    reported,
    save_shards,
    scaled,
    threaded,
)
from novel_groups import broadcasted, critics, grid, hosted, hybrid, smoothed
from novel_habits import budgeted, evaluatedalone, gossiped, profiled, recompiled
from novel_loops import actors, policy, sampled, serving
from novel_models import Adapted, HeadsExchanged, Pictures, Routed, Setup, Transformer
from novel_updates import background, dropped, muon, owned, preferred
from phase_injector import PhaseInjector
from phases import job_arguments, load
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.fsdp import fully_shard
from torch.distributed.nn.functional import all_gather
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler
from train import VOCABULARY, join, loss_against
from unusual_job import Recomputed
from varied_job import KINDS as VARIED
from varied_job import Step, adam, ddp_step, updating

_EVALUATION_STEPS, _EVALUATION_BATCHES = 25, 8
_SAVING_STEPS, _CURRICULUM_STEPS = 20, 120
_LENGTHS = (256, 512, 1024, 1536, 2048)
_EPOCH_STEPS, _WORKERS = 60, 8


def scheduled(setup: Setup) -> Step:
    """Pipeline stages of torch.distributed.pipelining, 1F1B."""
    rank, size = dist.get_rank(), dist.get_world_size()
    part = setup.part(first=rank == 0, last=rank == size - 1, layers=setup.args.layers // size)
    part.register_forward_pre_hook(lambda *_: setup.injector.begin_micro_batch())
    stage = PipelineStage(part, rank, size, setup.device)
    schedule = Schedule1F1B(
        stage, setup.args.accumulate, loss_fn=lambda logits, targets: loss_against(targets, logits)
    )

    def passes(number: int) -> torch.Tensor | None:
        torch.manual_seed(number)
        shape = (setup.args.micro_batch * setup.args.accumulate, setup.args.sequence + 1)
        tokens = torch.randint(VOCABULARY, shape, device=setup.device)
        losses: list[torch.Tensor] = []
        inputs = (tokens[:, :-1].contiguous(),) if rank == 0 else ()
        target = tokens[:, 1:].contiguous() if rank == size - 1 else None
        schedule.step(*inputs, target=target, losses=losses if rank == size - 1 else None)
        return torch.stack(losses).mean().detach() if losses else None

    return updating(adam(part), passes)


def adapters(setup: Setup) -> Step:
    """LoRA: small matrices beside frozen ones, gradients of several micro-batches reduced at once."""
    part = setup.part().requires_grad_(requires_grad=False)
    for block in part.blocks:
        for name in ("qkv", "out", "up", "down"):
            setattr(block, name, Adapted(getattr(block, name)))
    model = wrapped(part, "ddp", setup.device)
    optimizer = torch.optim.AdamW([one for one in model.parameters() if one.requires_grad], lr=1e-4)

    def passes(_number: int) -> torch.Tensor:
        with model.no_sync():
            for _ in range(setup.args.accumulate - 1):
                setup.backward(model, setup.tokens())
        return setup.backward(model, setup.tokens())

    return updating(optimizer, passes)


def evaluated(setup: Setup) -> Step:
    """FSDP2 with activations computed again, evaluated every 25 steps."""
    part = setup.part()
    for block in part.blocks:
        fully_shard(block)
    model = fully_shard(Recomputed(part))
    train = updating(adam(model), lambda _number: setup.backward(model, setup.tokens()))

    def step(number: int) -> torch.Tensor | None:
        loss = train(number)
        if number % _EVALUATION_STEPS == 0:
            evaluate(setup, model, _EVALUATION_BATCHES)
        return loss

    return step


def saved(setup: Setup) -> Step:
    """FSDP2 whose ranks all write their shards every 20 steps."""
    model = wrapped(setup.part(), "fsdp2", setup.device)
    optimizer = adam(model)
    train = updating(optimizer, lambda _number: setup.backward(model, setup.tokens()))
    folder = Path(tempfile.gettempdir()) / "novel-saved"

    def step(number: int) -> torch.Tensor | None:
        loss = train(number)
        if number % _SAVING_STEPS == 0:
            save_shards(model, optimizer, folder)
        return loss

    return step


def bucketed(setup: Setup) -> Step:
    """Sequences sorted into buckets by length: all ranks have the same length, another in each step."""
    model = wrapped(setup.part(), "ddp", setup.device)

    def batch(number: int) -> list[torch.Tensor]:
        length = random.Random(number).choice(_LENGTHS)
        return [setup.tokens(min(length, setup.args.sequence))]

    return ddp_step(setup, model, batch)


def curriculum(setup: Setup) -> Step:
    """Half of the sequence at first, all of it from step 121 on."""
    model = wrapped(setup.part(), "ddp", setup.device)
    full = setup.args.sequence
    return ddp_step(
        setup, model, lambda number: [setup.tokens(full if number > _CURRICULUM_STEPS else full // 2)]
    )


def pictures(setup: Setup) -> Step:
    """A vision transformer; the loader's workers begin anew in each epoch, at whose end it validates."""
    torch.manual_seed(0)
    with setup.device:
        network = Transformer(setup.args.layers, setup.args.hidden).to(setup.dtype)
    model = wrapped(network, "ddp", setup.device)
    data = Pictures(_EPOCH_STEPS * setup.args.micro_batch * dist.get_world_size())
    sampler: DistributedSampler[object] = DistributedSampler(data)
    loader = DataLoader(
        data, batch_size=setup.args.micro_batch, sampler=sampler, num_workers=_WORKERS, pin_memory=True
    )
    setup.injector.slow_loaders()

    def endless() -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        epoch = 0
        while True:
            sampler.set_epoch(epoch)
            yield from loader
            epoch += 1

    batches = endless()

    def prepared(given: torch.Tensor) -> torch.Tensor:
        return given.to(setup.device, non_blocking=True).to(setup.dtype).div_(255)

    def passes(number: int) -> torch.Tensor:
        given, classes = next(batches)
        x = prepared(given)
        setup.injector.begin_micro_batch()
        loss = functional.cross_entropy(model(x), classes.to(setup.device, non_blocking=True))
        loss.backward()
        if number % _EPOCH_STEPS == 0:
            with torch.no_grad():
                for _ in range(_EVALUATION_BATCHES):
                    network(x)
        return loss.detach()

    return updating(torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9), passes)


def regional(setup: Setup) -> Step:
    """Each layer compiled, gradients reduced in few large buckets, as bf16."""
    part = setup.part()
    if setup.device.type == "cuda":
        for block in part.blocks:
            block.compile()
    ids = [setup.device.index] if setup.device.type == "cuda" else None
    model = DistributedDataParallel(part, device_ids=ids, bucket_cap_mb=800, gradient_as_bucket_view=True)
    model.register_comm_hook(None, default_hooks.bf16_compress_hook)
    return ddp_step(setup, model, lambda _number: [setup.tokens()])


def routed(setup: Setup) -> Step:
    """Experts on different ranks, reached by all-to-all of as many tokens as the router sends."""
    part = setup.part()
    for at, block in enumerate(part.blocks):
        torch.manual_seed(at)
        with setup.device:
            part.blocks[at] = Routed(setup.args.hidden, block).to(setup.dtype)
    shared = [one for name, one in part.named_parameters() if ".experts." not in name]

    def passes(_number: int) -> torch.Tensor:
        loss = setup.backward(part, setup.tokens())
        gradients = [one.grad for one in shared if one.grad is not None]
        buffer = torch.cat([one.reshape(-1) for one in gradients])
        dist.all_reduce(buffer)
        buffer /= dist.get_world_size()
        for gradient, mean in zip(gradients, buffer.split([one.numel() for one in gradients]), strict=True):
            gradient.copy_(mean.view_as(gradient))
        return loss

    return updating(adam(part), passes)


def distilled(setup: Setup) -> Step:
    """A small model learns from a larger one that stays as it is."""
    teacher = setup.part().requires_grad_(requires_grad=False)
    student = wrapped(setup.part(layers=setup.args.layers // 2), "ddp", setup.device)

    def passes(_number: int) -> torch.Tensor:
        tokens = setup.tokens()[:, :-1]
        setup.injector.begin_micro_batch()
        with torch.no_grad():
            wanted = teacher(tokens).softmax(-1)
        loss = functional.cross_entropy(student(tokens).flatten(0, 1), wanted.flatten(0, 1))
        loss.backward()
        return loss.detach()

    return updating(adam(student), passes)


def contrastive(setup: Setup) -> Step:
    """Two towers; each rank compares its pairs with those of all ranks."""
    towers = nn.ModuleList(setup.part(last=False, layers=setup.args.layers // 2) for _ in range(2))

    class Towers(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.towers = towers

        def forward(self, one: torch.Tensor, other: torch.Tensor) -> list[torch.Tensor]:
            given = zip(self.towers, (one, other), strict=True)
            return [functional.normalize(tower(tokens).mean(1), dim=-1) for tower, tokens in given]

    model = wrapped(Towers(), "ddp", setup.device)

    def passes(_number: int) -> torch.Tensor:
        setup.injector.begin_micro_batch()
        gathered = [torch.cat(all_gather(one)) for one in model(setup.tokens(), setup.tokens())]
        scores = gathered[0] @ gathered[1].T / 0.07
        loss = functional.cross_entropy(scores, torch.arange(len(scores), device=setup.device))
        loss.backward()
        return loss.detach()

    return updating(adam(model), passes)


def accelerated(setup: Setup) -> Step:
    """A loop of Accelerate: it divides batches, accumulates gradients and clips their norm."""
    from accelerate import Accelerator  # noqa: PLC0415  (no other kind needs it)

    cuda = setup.device.type == "cuda"
    accelerator = Accelerator(
        gradient_accumulation_steps=setup.args.accumulate,
        mixed_precision="bf16" if cuda else "no",
        cpu=not cuda,
    )
    part = setup.part().float()
    loader = DataLoader(Tokens(setup.args.sequence, 10**6), batch_size=setup.args.micro_batch, num_workers=2)
    model, optimizer, prepared = accelerator.prepare(part, torch.optim.AdamW(part.parameters()), loader)
    setup.injector.slow_loaders()
    batches = iter(prepared)

    def step(_number: int) -> torch.Tensor:
        for _ in range(setup.args.accumulate):
            tokens = next(batches)
            setup.injector.begin_micro_batch()
            with accelerator.accumulate(model):
                loss = loss_against(tokens[:, 1:], model(tokens[:, :-1]))
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
        return loss.detach()

    return step


def exchanged(setup: Setup) -> Step:
    """Sequence parallelism with two all-to-alls in each layer and direction."""
    part = setup.part()
    for at, block in enumerate(part.blocks):
        part.blocks[at] = HeadsExchanged(block)
    model = wrapped(part, "ddp", setup.device)
    return updating(adam(model), lambda _number: setup.backward(model, setup.tokens()))


def unsynced(setup: Setup) -> Step:
    """Gradients of several micro-batches, reduced after each of them, as without `no_sync`."""
    model = wrapped(setup.part(), "ddp", setup.device)

    def passes(_number: int) -> torch.Tensor:
        for _ in range(setup.args.accumulate):
            loss = setup.backward(model, setup.tokens())
        return loss

    return updating(adam(model), passes)


KINDS: dict[str, Callable[[Setup], Step]] = {
    **VARIED,
    **{
        one.__name__: one
        for one in (
            *(scheduled, adapters, evaluated, saved, bucketed, curriculum, pictures, regional, routed),
            *(distilled, contrastive, actors, serving, sampled, policy, accelerated, exchanged, unsynced),
            *(background, dropped, muon, owned, preferred, broadcasted, critics, hosted, smoothed),
            *(grid, hybrid),
            *(compressed, lasting, normalized, recurrent, replicated, reported, scaled, threaded),
            *(budgeted, evaluatedalone, gossiped, profiled, recompiled),
        )
    },
}


def main() -> None:
    parser = job_arguments(__doc__)
    parser.add_argument("--kind", choices=KINDS, required=True)
    parser.add_argument("--print-every", type=int, default=5)
    parser.add_argument(
        "--printing-rank", type=int, help="the only rank that prints, from the end if negative"
    )
    args = parser.parse_args()
    device = join()
    injector = PhaseInjector(args.plan, args.truth, dist.get_rank(), micro_batches=args.accumulate)
    try:
        step = KINDS[args.kind](Setup(args, device, injector))
        silent = (
            args.printing_rank is not None and args.printing_rank % dist.get_world_size() != dist.get_rank()
        )
        for number in range(1, load(args.plan)[-1].last_step + 1):
            injector.begin_step()
            loss = step(number)
            if loss is not None and number % args.print_every == 0 and not silent:
                print(f"{time.strftime('%H:%M:%S')} iter {number} loss {loss.item():.4f}", flush=True)
    finally:
        injector.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

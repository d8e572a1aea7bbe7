"""Training jobs of kinds that perfd was not built on, with faults switched on and off by step.

    torchrun --nproc-per-node 2 benchmarks/gpu/unusual_job.py --plan plan.json --truth FOLDER --kind ring
    python benchmarks/gpu/unusual_job.py --plan plan.json --truth FOLDER --kind sharded --spawn 2

`phases.py` describes the plan, `phase_injector.py` the files in FOLDER. The loop does not use perfd, and
prints its loss every few steps. Without a GPU it runs on CPUs with gloo, for a trial.
"""

from __future__ import annotations

import argparse
import os
import socket
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
from loop_job import alone, wrapped
from phase_injector import PhaseInjector
from phases import job_arguments, load
from torch import multiprocessing, nn
from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset
from train import VOCABULARY, Part, join
from varied_job import Setup, Step, adam, ddp_step, updating

_CLASSES, _PIXELS, _WORKERS = 1000, 224, 12
_ROWS, _FEATURES, _WIDTH = 1_000_000, 64, 128
_VALIDATION_STEPS, _VALIDATION_BATCHES = 30, 10
_RING_BLOCKS = 12
_PROMPT_TOKENS, _NEW_TOKENS = 512, 32
_SAMPLE_STEPS, _SAMPLE_ROUNDS = 40, 30


class Recomputed(nn.Module):
    """Layers whose activations are computed again in the backward pass."""

    def __init__(self, part: Part) -> None:
        super().__init__()
        self.part = part

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        x = given if self.part.embedding is None else self.part.embedding(given)
        for block in self.part.blocks:
            x = checkpoint(block, x, use_reentrant=False)
        return x if self.part.head is None else self.part.head(x)


def sharded(setup: Setup) -> Step:
    """The first FSDP, gradients sharded only, with activations computed again."""
    part = setup.part()
    for at, block in enumerate(part.blocks):
        part.blocks[at] = FullyShardedDataParallel(
            block, sharding_strategy=ShardingStrategy.SHARD_GRAD_OP, use_orig_params=True
        )
    model = FullyShardedDataParallel(
        Recomputed(part), sharding_strategy=ShardingStrategy.SHARD_GRAD_OP, use_orig_params=True
    )
    return updating(adam(model), lambda _number: setup.backward(model, setup.tokens()))


def zero(setup: Setup) -> Step:
    """DDP with an optimizer whose states are sharded, gradients of four micro-batches, norms clipped."""
    model = wrapped(setup.part(), "ddp", setup.device)
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=1e-4)

    def passes(_number: int) -> torch.Tensor:
        with model.no_sync():
            for _ in range(setup.args.accumulate - 1):
                setup.backward(model, setup.tokens())
        loss = setup.backward(model, setup.tokens())
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        return loss

    return updating(optimizer, passes)


class Images(Dataset[tuple[torch.Tensor, int]]):
    """Random images, as bytes."""

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        generator = torch.Generator().manual_seed(index)
        return torch.randint(256, (3, _PIXELS, _PIXELS), generator=generator, dtype=torch.uint8), (
            index % _CLASSES
        )


def images(setup: Setup) -> Step:
    """ResNet-50 with synchronized batch norms and bf16 autocast; validates every 30 steps."""
    from torchvision.models import resnet50  # noqa: PLC0415  (no other kind needs it)

    torch.manual_seed(0)
    network = nn.SyncBatchNorm.convert_sync_batchnorm(resnet50()).to(setup.device)
    model = DistributedDataParallel(network.to(memory_format=torch.channels_last))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    workers = 12
    loader = iter(
        DataLoader(Images(), batch_size=setup.args.micro_batch, num_workers=workers, pin_memory=True)
    )
    setup.injector.slow_loaders()

    def passes(number: int) -> torch.Tensor:
        pixels, classes = next(loader)
        pixels = pixels.to(setup.device, non_blocking=True).float().div_(255)
        pixels = pixels.contiguous(memory_format=torch.channels_last)
        classes = classes.to(setup.device, non_blocking=True)
        setup.injector.begin_micro_batch()
        with torch.autocast(setup.device.type, torch.bfloat16):
            loss = functional.cross_entropy(
                model(pixels.contiguous(memory_format=torch.channels_last)), classes
            )
        loss.backward()
        if number % _VALIDATION_STEPS == 0:
            with torch.no_grad(), torch.autocast(setup.device.type, torch.bfloat16):
                network.eval()
                for _ in range(_VALIDATION_BATCHES):
                    network(pixels)
                network.train()
        return loss.detach()

    return updating(optimizer, passes)


def recommend(setup: Setup) -> Step:
    """Embedding tables split over ranks, looked up with all-to-all, then a dense part with DDP."""
    world = dist.get_world_size()
    mine = _FEATURES // world
    torch.manual_seed(dist.get_rank())
    table = nn.EmbeddingBag(_ROWS, _WIDTH, mode="sum", device=setup.device)
    torch.manual_seed(0)
    width = 4096
    dense = nn.Sequential(
        nn.Linear(_FEATURES * _WIDTH, width), nn.ReLU(),
        *(layer for _ in range(setup.args.layers // 2) for layer in (nn.Linear(width, width), nn.ReLU())),
        nn.Linear(width, 1),
    ).to(setup.device)  # fmt: skip
    model = DistributedDataParallel(dense)
    batch = setup.args.micro_batch * setup.args.sequence // 2
    optimizer = torch.optim.SGD([*table.parameters(), *model.parameters()], lr=0.01)

    def exchange(sent: torch.Tensor) -> torch.Tensor:
        received = torch.empty_like(sent)
        dist.all_to_all_single(received, sent)
        return received

    def passes(_number: int) -> torch.Tensor:
        setup.injector.begin_micro_batch()
        found = table(torch.randint(_ROWS, (batch * mine, 4), device=setup.device))
        # Every rank looks up its features of the samples of all ranks.
        shaped = found.view(world, batch // world, mine, _WIDTH)
        features = exchange(shaped.detach().contiguous()).requires_grad_()
        inputs = features.transpose(0, 1).reshape(batch // world, -1)
        loss = model(inputs).square().mean()
        loss.backward()
        shaped.backward(exchange(features.grad.contiguous()))
        return loss.detach()

    return updating(optimizer, passes)


class RingAttention(nn.Module):
    """Attention over a sequence that is split over ranks; keys and values go round by sends."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.heads = max(1, hidden // 128)
        self.qkv, self.out = nn.Linear(hidden, 3 * hidden), nn.Linear(hidden, hidden)
        self.up, self.down = nn.Linear(hidden, 4 * hidden), nn.Linear(4 * hidden, hidden)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, sequence, hidden = x.shape
        q, k, v = (
            one.view(batch, sequence, self.heads, -1).transpose(1, 2) for one in self.qkv(x).chunk(3, -1)
        )
        attended = functional.scaled_dot_product_attention(q, k, v)
        block = torch.stack([k.detach(), v.detach()])
        for _ in range(dist.get_world_size() - 1):
            block = passed_on(block)
            attended = attended + functional.scaled_dot_product_attention(q, block[0], block[1])
        x = x + self.out(attended.transpose(1, 2).reshape(batch, sequence, hidden))
        return x + self.down(functional.gelu(self.up(x)))


def passed_on(block: torch.Tensor) -> torch.Tensor:
    """The block of the rank before, for this rank's, which goes to the next."""
    rank, world = dist.get_rank(), dist.get_world_size()
    received = torch.empty_like(block)
    requests = dist.batch_isend_irecv(
        [
            dist.P2POp(dist.isend, block, (rank + 1) % world),
            dist.P2POp(dist.irecv, received, (rank - 1) % world),
        ]
    )
    for request in requests:
        request.wait()
    return received


def ring(setup: Setup) -> Step:
    """Context parallelism: each rank holds a part of the sequence."""
    torch.manual_seed(0)
    hidden = setup.args.hidden
    layers = nn.Sequential(*(RingAttention(hidden) for _ in range(_RING_BLOCKS)))
    model = DistributedDataParallel(layers.to(setup.device, setup.dtype))

    def passes(_number: int) -> torch.Tensor:
        setup.injector.begin_micro_batch()
        shape = (setup.args.micro_batch, setup.args.sequence, hidden)
        loss = model(torch.randn(shape, device=setup.device, dtype=setup.dtype)).float().square().mean()
        loss.backward()
        return loss.detach()

    return updating(adam(model), passes)


def bucketless(setup: Setup) -> Step:
    """Gradients are reduced one by one after the backward pass, as older loops do."""
    part = setup.part()
    optimizer = adam(part)

    def step(_number: int) -> torch.Tensor:
        loss = setup.backward(part, setup.tokens())
        for parameter in part.parameters():
            dist.all_reduce(parameter.grad, op=dist.ReduceOp.SUM)
            parameter.grad /= dist.get_world_size()
        nn.utils.clip_grad_norm_(part.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        # Logged at each step, as many loops do: the host waits for its GPU.
        float(loss)
        return loss

    return step


def flat(setup: Setup) -> Step:
    """All gradients are reduced at once, in one buffer, as loops before DDP do."""
    part = setup.part()
    parameters = list(part.parameters())

    def passes(_number: int) -> torch.Tensor:
        loss = setup.backward(part, setup.tokens())
        buffer = torch.cat([parameter.grad.reshape(-1) for parameter in parameters])
        dist.all_reduce(buffer)
        buffer /= dist.get_world_size()
        for parameter, mean in zip(
            parameters, buffer.split([one.numel() for one in parameters]), strict=True
        ):
            parameter.grad = mean.view_as(parameter)
        return loss

    return updating(adam(part), passes)


def compiled(setup: Setup) -> Step:
    """The model compiled, with DDP."""
    model = wrapped(setup.part(), "ddp", setup.device)
    compiled_model = torch.compile(model)

    def passes(_number: int) -> torch.Tensor:
        return setup.backward(compiled_model, setup.tokens())

    return updating(adam(model), passes)


def plain(setup: Setup) -> Step:
    """DDP as it is."""
    model = wrapped(setup.part(), "ddp", setup.device)
    return ddp_step(setup, model, lambda _number: [setup.tokens()])


def attended(block: nn.Module, heads: int, x: torch.Tensor, cache: list[torch.Tensor]) -> torch.Tensor:
    """A layer of `Part` whose keys and values of earlier tokens are in the cache, to which it adds these."""
    batch, length, hidden = x.shape
    q, k, v = (
        one.view(batch, length, heads, -1).transpose(1, 2) for one in block.qkv(block.norm_1(x)).chunk(3, -1)
    )
    causal = not cache
    kept = torch.stack([k, v]) if causal else torch.cat([cache.pop(), torch.stack([k, v])], dim=3)
    cache.append(kept)
    found = functional.scaled_dot_product_attention(q, kept[0], kept[1], is_causal=causal)
    x = x + block.out(found.transpose(1, 2).reshape(batch, length, hidden))
    return x + block.down(functional.gelu(block.up(block.norm_2(x))))


def generate(setup: Setup) -> Step:
    """As an engine that serves: a prompt, then token after token with a cache of keys and values."""
    part = setup.part().eval()
    heads, shape = max(1, setup.args.hidden // 128), (setup.args.micro_batch, _PROMPT_TOKENS)

    @torch.no_grad()
    def forward(tokens: torch.Tensor, caches: list[list[torch.Tensor]]) -> torch.Tensor:
        x = part.embedding(tokens)
        for block, cache in zip(part.blocks, caches, strict=True):
            x = attended(block, heads, x, cache)
        return part.head(x[:, -1:]).argmax(-1)

    def step(_number: int) -> torch.Tensor:
        caches: list[list[torch.Tensor]] = [[] for _ in part.blocks]
        setup.injector.begin_micro_batch()
        token = forward(torch.randint(VOCABULARY, shape, device=setup.device), caches)
        for _ in range(_NEW_TOKENS):
            token = forward(token, caches)
            token.tolist()
        return token.float().mean()

    return step


def diffusion(setup: Setup) -> Step:
    """A convolutional network that removes noise; makes samples every 40 steps."""
    torch.manual_seed(0)
    width = 256
    layers = [nn.Conv2d(3, width, 3, padding=1)]
    for _ in range(setup.args.layers):
        layers += [nn.GroupNorm(8, width), nn.SiLU(), nn.Conv2d(width, width, 3, padding=1)]
    layers.append(nn.Conv2d(width, 3, 3, padding=1))
    model = nn.Sequential(*layers).to(setup.device, setup.dtype)
    batch = 8 * setup.args.micro_batch

    def passes(number: int) -> torch.Tensor:
        setup.injector.begin_micro_batch()
        clean = torch.randn(batch, 3, 64, 64, device=setup.device, dtype=setup.dtype)
        noise = torch.randn_like(clean)
        loss = functional.mse_loss(model(clean + noise), noise)
        loss.backward()
        if number % _SAMPLE_STEPS == 0:
            with torch.no_grad():
                sample = noise
                for _ in range(_SAMPLE_ROUNDS):
                    sample = sample - model(sample)
        return loss.detach()

    return updating(adam(model), passes)


KINDS: dict[str, Callable[[Setup], Step]] = {
    one.__name__: one
    for one in (
        *(sharded, zero, images, recommend, ring, bucketless, flat, compiled, plain, generate, diffusion),
    )
}


def run(rank: int, args: argparse.Namespace, address: str) -> None:
    """One rank that this script started itself: its number is not in its environment."""
    device, backend = torch.device("cpu"), "gloo"
    if torch.cuda.is_available():
        device, backend = torch.device("cuda", rank), "nccl"
        torch.cuda.set_device(device)
    dist.init_process_group(backend, init_method=address, rank=rank, world_size=args.spawn)
    train(args, device)


def train(args: argparse.Namespace, device: torch.device) -> None:
    distributed = dist.is_initialized()
    rank, world = (dist.get_rank(), dist.get_world_size()) if distributed else (0, 1)
    injector = PhaseInjector(args.plan, args.truth, rank, micro_batches=args.accumulate)
    try:
        step = KINDS[args.kind](Setup(args, device, injector))
        for number in range(1, load(args.plan)[-1].last_step + 1):
            injector.begin_step()
            loss = step(number)
            if loss is not None and number % args.print_every == 0:
                value = loss.item()
                if rank in {0, world - 1}:
                    print(f"{time.strftime('%H:%M:%S')} iter {number} loss {value:.4f}", flush=True)
    finally:
        injector.close()
    if distributed:
        dist.destroy_process_group()


def main() -> None:
    parser = job_arguments(__doc__)
    parser.add_argument("--kind", choices=KINDS, required=True)
    parser.add_argument("--print-every", type=int, default=5)
    parser.add_argument("--spawn", type=int, metavar="RANKS", help="start so many ranks here")
    args = parser.parse_args()
    if args.spawn:
        with socket.socket() as one:
            one.bind(("127.0.0.1", 0))
            address = f"tcp://127.0.0.1:{one.getsockname()[1]}"
        multiprocessing.spawn(run, (args, address), nprocs=args.spawn)
    else:
        train(args, join() if "WORLD_SIZE" in os.environ else alone())


if __name__ == "__main__":
    main()

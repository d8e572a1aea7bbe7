"""A small GPT in plain PyTorch: data parallel, pipeline parallel, or both; a real job to watch.

    torchrun --nproc-per-node 4 benchmarks/gpu/train.py --steps 200 --stages 2 --times times.json

It knows nothing of perfd. It prints torchtitan's progress line and, with `--times`, writes each step's
duration as rank 0 measured it with CUDA events that are read only at the end, how much of each step each
rank's own work took, waiting for nobody, and when the fault began.
`--fault` makes one thing wrong from step `--fault-from` on. Without a GPU it runs on CPUs with gloo, to try
it. Ranks are in Megatron's order, stages slowest.
"""

from __future__ import annotations

import argparse
import datetime as dt
import itertools
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from injected import FAULTS, Fault
from schedule import Pipeline
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

VOCABULARY = 32_000
_SMALL_BYTES = 16_384
"""More than the 8 KiB under which NCCL's Inspector leaves operations out."""
PEAK_FLOPS = 989.4e12

Mark = Any
"""A CUDA event, or a number."""


class Block(nn.Module):
    def __init__(self, hidden: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm_1, self.norm_2 = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.qkv, self.out = nn.Linear(hidden, 3 * hidden), nn.Linear(hidden, hidden)
        self.up, self.down = nn.Linear(hidden, 4 * hidden), nn.Linear(4 * hidden, hidden)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, sequence, hidden = x.shape
        q, k, v = (
            part.view(batch, sequence, self.heads, hidden // self.heads).transpose(1, 2)
            for part in self.qkv(self.norm_1(x)).chunk(3, dim=-1)
        )
        attended = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(batch, sequence, hidden))
        return x + self.down(functional.gelu(self.up(self.norm_2(x))))


class Part(nn.Module):
    """The layers of one stage, with the embedding on the first and the head on the last."""

    def __init__(self, layers: int, hidden: int, *, first: bool, last: bool) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, hidden) if first else None
        self.blocks = nn.Sequential(*(Block(hidden, heads=max(1, hidden // 128)) for _ in range(layers)))
        self.head = nn.Linear(hidden, VOCABULARY, bias=False) if last else None

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        x = self.blocks(given if self.embedding is None else self.embedding(given))
        return x if self.head is None else self.head(x)


class Clock:
    """Marks that are read only at the end: CUDA events, or the host's clock without a GPU."""

    def __init__(self, device: torch.device) -> None:
        self._cuda = device.type == "cuda"
        self._steps: list[Mark] = []
        self._own: list[tuple[int, Mark, Mark]] = []
        """Step, begin and end of work in which this rank waits for nobody."""
        self._began: Mark | None = None

    def step(self) -> None:
        """A step ends and the next one begins, with work of its own."""
        self._steps.append(self._mark())
        self._began = self._steps[-1]

    def own_begins(self) -> None:
        self._began = self._mark()

    def own_ends(self) -> None:
        if self._began is not None:
            self._own.append((len(self._steps) - 1, self._began, self._mark()))
        self._began = None

    def step_seconds(self) -> list[float]:
        return [_between(a, b) for a, b in itertools.pairwise(self._steps)]

    def own_seconds(self) -> list[float]:
        seconds = [0.0] * (len(self._steps) - 1)
        for step, begin, end in self._own:
            seconds[step] += _between(begin, end)
        return seconds

    def _mark(self) -> Mark:
        if not self._cuda:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event


def _between(begin: Mark, end: Mark) -> float:
    if isinstance(begin, float) and isinstance(end, float):
        return end - begin
    return begin.elapsed_time(end) / 1e3


def batches(args: argparse.Namespace, device: torch.device, fault: Fault) -> Iterator[list[torch.Tensor]]:
    """The micro-batches of each step, the same on all stages of a replica."""
    replicas = dist.get_world_size() // args.stages
    generator = torch.Generator(device=device).manual_seed(dist.get_rank() % replicas)
    shape = (args.micro_batch, args.sequence + 1)
    count = args.micro_batches if args.stages > 1 else 1
    while True:
        fault.in_loader()
        yield [torch.randint(VOCABULARY, shape, device=device, generator=generator) for _ in range(count)]


def flops_per_step(parameters: int, layers: int, hidden: int, sequence: int, tokens: int) -> float:
    return tokens * (6 * parameters + 6 * layers * hidden * sequence)


def print_start(args: argparse.Namespace, replicas: int) -> None:
    now = dt.datetime.now().strftime("%Y-%m-%d %H:%M:%S,%f")[:-3]  # noqa: DTZ005  (as torchtitan prints it)
    dimensions, sizes = ["dp_replicate"], [replicas]
    if args.stages > 1:
        dimensions, sizes = ["pp", *dimensions], [args.stages, *sizes]
    local = args.micro_batch * (args.micro_batches if args.stages > 1 else 1)
    print(f"[titan] {now} - root - INFO - Building {len(sizes)}-D device mesh with {dimensions}, {sizes}")
    if args.stages > 1:
        print(
            f"[titan] {now} - root - INFO - Using pipeline schedule 1F1B with {args.micro_batches}"
            f" microbatches and {args.stages} stages."
        )
    print(
        f"[titan] {now} - root - INFO - Training starts at step 1, with local batch size {local}, "
        f"global batch size {local * replicas}, sequence length {args.sequence}, "
        f"total steps {args.steps} (warmup 0)",
        flush=True,
    )


def print_progress(step: int, loss: float, seconds: float, tokens: int, flops: float) -> None:
    now = dt.datetime.now().strftime("%Y-%m-%d %H:%M:%S,%f")[:-3]  # noqa: DTZ005  (as torchtitan prints it)
    used, share = 0.0, 0.0
    if torch.cuda.is_available():
        used = torch.cuda.max_memory_reserved() / 2**30
        share = 100 * used * 2**30 / torch.cuda.get_device_properties(0).total_memory
    print(
        f"[titan] {now} - root - INFO - step: {step:2}  loss: {loss:8.5f}  grad_norm:  1.0000  "
        f"memory: {used:5.2f}GiB({share:.2f}%)  tps: {tokens / seconds:,.0f}  "
        f"tflops: {flops / seconds / 1e12:.2f}  mfu: {100 * flops / seconds / PEAK_FLOPS:.2f}%",
        flush=True,
    )


def loss_against(targets: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


class DataParallel:
    """A whole model on each rank, gradients reduced beside the backward pass."""

    def __init__(self, part: Part, device: torch.device, fault: Fault, clock: Clock) -> None:
        ids = [device.index] if device.type == "cuda" else None
        self.model = DistributedDataParallel(part, device_ids=ids, gradient_as_bucket_view=True)
        self.fault, self.clock = fault, clock

    def step(self, tokens: list[torch.Tensor]) -> torch.Tensor:
        loss = loss_against(tokens[0][:, 1:], self.model(tokens[0][:, :-1]))
        self.fault.before_backward()
        self.clock.own_ends()
        loss.backward()
        return loss.detach()


class Staged:
    """One stage on each rank; gradients of replicas are reduced after the schedule."""

    def __init__(self, part: Part, args: argparse.Namespace, fault: Fault, clock: Clock) -> None:
        world, rank = dist.get_world_size(), dist.get_rank()
        replicas = world // args.stages
        like = next(part.parameters())
        shape = (args.micro_batch, args.sequence, args.hidden)
        self.part, self.fault, self.replicas, self.clock = part, fault, replicas, clock
        self.pipeline = Pipeline(part, range(rank % replicas, world, replicas), shape, like, clock)
        groups = [
            dist.new_group(range(stage * replicas, (stage + 1) * replicas)) for stage in range(args.stages)
        ]
        self.group = groups[rank // replicas]

    def step(self, tokens: list[torch.Tensor]) -> torch.Tensor | None:
        self.fault.before_backward()
        self.clock.own_ends()
        loss = self.pipeline.step(
            [batch[:, :-1] for batch in tokens], lambda logits, n: loss_against(tokens[n][:, 1:], logits)
        )
        if self.replicas > 1:
            for parameter in self.part.parameters():
                dist.all_reduce(parameter.grad, group=self.group)
        return loss


def part_of(args: argparse.Namespace) -> Part:
    stage = dist.get_rank() // (dist.get_world_size() // args.stages)
    last = stage == args.stages - 1
    layers = args.layers // args.stages
    if args.fault == "heavy_last_stage" and last:
        layers += int(args.fault_strength)
    return Part(layers, args.hidden, first=stage == 0, last=last)


def profiler_of(folder: Path) -> torch.profiler.profile:
    """One that has begun."""
    profiler = torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA],
        schedule=torch.profiler.schedule(wait=18, warmup=2, active=3, repeat=1),
        on_trace_ready=lambda p: p.export_chrome_trace(str(folder / f"rank-{dist.get_rank()}.json")),
    )
    profiler.start()
    return profiler


def train(args: argparse.Namespace, device: torch.device) -> None:
    torch.manual_seed(0)
    part = part_of(args).to(device, torch.bfloat16 if device.type == "cuda" else torch.float32)
    fault = Fault(args, device)
    clock = Clock(device)
    job = Staged(part, args, fault, clock) if args.stages > 1 else DataParallel(part, device, fault, clock)
    optimizer = torch.optim.AdamW(part.parameters(), lr=1e-4, fused=device.type == "cuda")
    replicas = dist.get_world_size() // args.stages
    tokens = args.micro_batch * args.sequence * (args.micro_batches if args.stages > 1 else 1)
    layer_parameters = 12 * args.layers * args.hidden**2 + VOCABULARY * args.hidden
    flops = flops_per_step(layer_parameters, args.layers, args.hidden, args.sequence, tokens) / args.stages
    data = batches(args, device, fault)
    small = torch.zeros(_SMALL_BYTES // 4, device=device)
    # The loss is on the last stage, and so is who prints it.
    printer = dist.get_world_size() - replicas
    prints = dist.get_rank() == printer
    if prints:
        print_start(args, replicas)
    profiler = profiler_of(args.profile) if args.profile else None
    clock.step()
    last_print = time.perf_counter()
    for step in range(1, args.steps + 1):
        fault.at(step)
        batch = next(data)
        fault.in_step()
        loss = job.step(batch)
        for _ in range(args.small_all_reduces):
            dist.all_reduce(small)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        clock.step()
        if profiler is not None:
            profiler.step()
        if step == 1 or step % args.print_every == 0:
            value = 0.0 if loss is None else loss.item()
            now = time.perf_counter()
            if prints:
                covered = 1 if step == 1 else args.print_every
                print_progress(step, value, (now - last_print) / covered, tokens // args.stages, flops)
            last_print = now
    if args.times:
        write_times(args, clock, fault)


def write_times(args: argparse.Namespace, clock: Clock, fault: Fault) -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    own_s: list[list[float]] = [[] for _ in range(dist.get_world_size())]
    dist.all_gather_object(own_s, clock.own_seconds())
    if dist.get_rank() == 0:
        document = {
            "seconds": clock.step_seconds(),
            "own_s": own_s,
            "fault_unix_s": fault.began_unix_s,
            "fault_from": args.fault_from,
        }
        args.times.write_text(json.dumps(document))


def join() -> torch.device:
    """This rank's device, once the process group is there."""
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
        dist.init_process_group("nccl", device_id=device)
    else:
        torch.set_num_threads(1)
        device = torch.device("cpu")
        dist.init_process_group("gloo")
    return device


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--hidden", type=int, default=2048)
    parser.add_argument("--sequence", type=int, default=2048)
    parser.add_argument("--micro-batch", type=int, default=4)
    parser.add_argument("--micro-batches", type=int, default=8, help="a step, with more than one stage")
    parser.add_argument("--stages", type=int, default=1)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--print-every", type=int, default=5)
    parser.add_argument("--times", type=Path, help="write step durations here, as JSON")
    parser.add_argument(
        "--profile", type=Path, help="write a PyTorch profile of steps 20 to 22 into this folder"
    )
    parser.add_argument(
        "--small-all-reduces", type=int, default=0, metavar="N", help="so many of 16 KiB more in each step"
    )
    parser.add_argument("--fault", choices=FAULTS, default="none")
    parser.add_argument("--fault-rank", type=int, default=1)
    parser.add_argument("--fault-strength", type=float, default=0.0)
    parser.add_argument("--fault-from", type=int, default=1, metavar="STEP")
    args = parser.parse_args()
    device = join()
    train(args, device)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

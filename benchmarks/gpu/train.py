"""A real training job to measure perfd around: a GPT under DistributedDataParallel, on as many GPUs as ranks.

    torchrun --nproc-per-node 2 benchmarks/gpu/train.py --steps 200 --times times.json

It knows nothing of perfd. It prints torchtitan's progress line and, with `--times`, writes each step's
duration as rank 0 measured it with CUDA events that are read only at the end. `--fault` makes one thing
wrong.
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

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

FAULTS = ("none", "slow_rank", "slow_loader", "slow_loaders", "forced_sync", "tiny_kernels", "late_entry")
VOCABULARY = 32_000
PEAK_FLOPS = 989.4e12


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


class Gpt(nn.Module):
    def __init__(self, layers: int, hidden: int, heads: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, hidden)
        self.blocks = nn.Sequential(*(Block(hidden, heads) for _ in range(layers)))
        self.head = nn.Linear(hidden, VOCABULARY, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.blocks(self.embedding(tokens)))


class Fault:
    """What goes wrong, on which rank, and how much."""

    def __init__(self, kind: str, rank: int, strength: float, device: torch.device) -> None:
        self.kind, self.strength = kind, strength
        self.here = kind != "none" and (kind == "slow_loaders" or rank == dist.get_rank())
        self.matrix = torch.randn(4096, 4096, device=device, dtype=torch.bfloat16)

    def in_loader(self) -> None:
        if self.here and self.kind in {"slow_loader", "slow_loaders"}:
            time.sleep(self.strength)

    def in_step(self) -> None:
        """`strength` is in seconds, but for `slow_rank`, where it is a count of 4096-cubed products."""
        if not self.here:
            return
        if self.kind == "slow_rank":
            for _ in range(int(self.strength)):
                self.matrix @ self.matrix
        if self.kind == "forced_sync":
            torch.cuda.synchronize()
            time.sleep(self.strength)
        if self.kind == "tiny_kernels":
            small = torch.zeros(8, device=self.matrix.device)
            for _ in range(int(self.strength * 100_000)):
                small.add_(1)

    def before_backward(self) -> None:
        if self.here and self.kind == "late_entry":
            time.sleep(self.strength)


def batches(micro_batch: int, sequence: int, device: torch.device, fault: Fault) -> Iterator[torch.Tensor]:
    generator = torch.Generator(device=device).manual_seed(dist.get_rank())
    while True:
        fault.in_loader()
        yield torch.randint(VOCABULARY, (micro_batch, sequence + 1), device=device, generator=generator)


def flops_per_step(parameters: int, layers: int, hidden: int, sequence: int, tokens: int) -> float:
    return tokens * (6 * parameters + 6 * layers * hidden * sequence)


def print_start(args: argparse.Namespace) -> None:
    world = dist.get_world_size()
    now = dt.datetime.now().strftime("%Y-%m-%d %H:%M:%S,%f")[:-3]  # noqa: DTZ005  (as torchtitan prints it)
    print(
        f"[titan] {now} - root - INFO - Building 1-D device mesh with ['dp_replicate'], [{world}]", flush=True
    )
    print(
        f"[titan] {now} - root - INFO - Training starts at step 1, with local batch size {args.micro_batch}, "
        f"global batch size {args.micro_batch * world}, sequence length {args.sequence}, "
        f"total steps {args.steps} (warmup 0)",
        flush=True,
    )


def print_progress(step: int, loss: float, seconds: float, tokens: int, flops: float) -> None:
    now = dt.datetime.now().strftime("%Y-%m-%d %H:%M:%S,%f")[:-3]  # noqa: DTZ005  (as torchtitan prints it)
    used = torch.cuda.max_memory_reserved() / 2**30
    share = 100 * torch.cuda.max_memory_reserved() / torch.cuda.get_device_properties(0).total_memory
    print(
        f"[titan] {now} - root - INFO - step: {step:2}  loss: {loss:8.5f}  grad_norm:  1.0000  "
        f"memory: {used:5.2f}GiB({share:.2f}%)  tps: {tokens / seconds:,.0f}  "
        f"tflops: {flops / seconds / 1e12:.2f}  mfu: {100 * flops / seconds / PEAK_FLOPS:.2f}%",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--hidden", type=int, default=2048)
    parser.add_argument("--sequence", type=int, default=2048)
    parser.add_argument("--micro-batch", type=int, default=4)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--print-every", type=int, default=5)
    parser.add_argument("--times", type=Path, help="write step durations here, as JSON")
    parser.add_argument(
        "--profile", type=Path, help="write a PyTorch profile of steps 20 to 22 into this folder"
    )
    parser.add_argument("--fault", choices=FAULTS, default="none")
    parser.add_argument("--fault-rank", type=int, default=1)
    parser.add_argument("--fault-strength", type=float, default=0.0)
    args = parser.parse_args()

    local_rank = int(os.environ["LOCAL_RANK"])
    device = torch.device("cuda", local_rank)
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device)
    torch.manual_seed(0)
    model = Gpt(args.layers, args.hidden, heads=args.hidden // 128).to(device, torch.bfloat16)
    parameters = sum(p.numel() for p in model.parameters()) - model.embedding.weight.numel()
    ddp = DistributedDataParallel(model, device_ids=[local_rank], gradient_as_bucket_view=True)
    optimizer = torch.optim.AdamW(ddp.parameters(), lr=1e-4, fused=True)
    fault = Fault(args.fault, args.fault_rank, args.fault_strength, device)
    tokens = args.micro_batch * args.sequence
    flops = flops_per_step(parameters, args.layers, args.hidden, args.sequence, tokens)
    data = batches(args.micro_batch, args.sequence, device, fault)

    if dist.get_rank() == 0:
        print_start(args)
    profiler = None
    if args.profile:
        profiler = torch.profiler.profile(
            activities=[torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA],
            schedule=torch.profiler.schedule(wait=18, warmup=2, active=3, repeat=1),
            on_trace_ready=lambda p: p.export_chrome_trace(
                str(args.profile / f"rank-{dist.get_rank()}.json")
            ),
        )
        profiler.start()
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(args.steps + 1)]
    marks[0].record()
    last_print = time.perf_counter()
    for step in range(1, args.steps + 1):
        batch = next(data)
        fault.in_step()
        logits = ddp(batch[:, :-1])
        loss = functional.cross_entropy(logits.flatten(0, 1).float(), batch[:, 1:].flatten())
        fault.before_backward()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        marks[step].record()
        if profiler:
            profiler.step()
        if step == 1 or step % args.print_every == 0:
            value = loss.item()
            now = time.perf_counter()
            if dist.get_rank() == 0:
                covered = 1 if step == 1 else args.print_every
                print_progress(step, value, (now - last_print) / covered, tokens, flops)
            last_print = now
    torch.cuda.synchronize()
    if args.times and dist.get_rank() == 0:
        seconds = [a.elapsed_time(b) / 1e3 for a, b in itertools.pairwise(marks)]
        args.times.write_text(json.dumps(seconds))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

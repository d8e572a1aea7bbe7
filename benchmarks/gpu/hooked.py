"""The model of `train.py` in a loop that uses `perfd.hook`, beside events of its own.

    torchrun --nproc-per-node 2 benchmarks/gpu/hooked.py --steps 120 --times FOLDER [--no-hook]

Each rank writes `rank-N.json`: how long steps and phases took by its own CUDA events, which are made before
the loop and read after it. Rank 0 then times a matrix product by `hook.benchmark`, and by two events around
as many products in a row.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from train import VOCABULARY, Part, join, loss_against

from perfd import hook

PHASES = ("forward", "backward", "optimizer")
_PRODUCTS = 100


class Own:
    """Begin of each step, and begin and end of each phase, made in advance."""

    def __init__(self, steps: int) -> None:
        self._steps = [_event() for _ in range(steps + 1)]
        self._phases = {name: [(_event(), _event()) for _ in range(steps)] for name in PHASES}

    def step(self, number: int) -> None:
        self._steps[number].record()

    @contextlib.contextmanager
    def phase(self, name: str, number: int) -> Iterator[None]:
        begin, end = self._phases[name][number]
        begin.record()
        yield
        end.record()

    def seconds(self) -> dict[str, list[float]]:
        _wait()
        pairs = zip(self._steps, self._steps[1:], strict=False)
        phases = {
            name: [begin.elapsed_time(end) / 1e3 for begin, end in marks]
            for name, marks in self._phases.items()
        }
        return {"step": [begin.elapsed_time(end) / 1e3 for begin, end in pairs], **phases}


class HostMark:
    """An instant of the host's clock, where there is no GPU."""

    def record(self) -> None:
        self.at_s = time.perf_counter()

    def elapsed_time(self, end: HostMark) -> float:
        return 1000 * (end.at_s - self.at_s)


def _event() -> Any:  # noqa: ANN401  (either kind)
    return torch.cuda.Event(enable_timing=True) if torch.cuda.is_available() else HostMark()


def _wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def train(args: argparse.Namespace, device: torch.device) -> dict[str, list[float]]:
    torch.manual_seed(0)
    cuda = device.type == "cuda"
    part = Part(args.layers, args.hidden, first=True, last=True)
    part.to(device, torch.bfloat16 if cuda else torch.float32)
    ids = [device.index] if cuda else None
    model = DistributedDataParallel(part, device_ids=ids, gradient_as_bucket_view=True)
    optimizer = torch.optim.AdamW(part.parameters(), lr=1e-4, fused=cuda)
    timer = None
    if not args.no_hook:
        layout = {"dp": dist.get_world_size(), "tp": 1, "pp": 1}
        timer = hook.StepTimer(report_steps=True, layout=layout, nvtx=not args.no_nvtx)
    own = Own(args.steps)
    shape = (args.micro_batch, args.sequence + 1)

    def phase(name: str) -> AbstractContextManager[None]:
        return timer.phase(name) if timer else contextlib.nullcontext()

    loader = (torch.randint(VOCABULARY, shape, device=device) for _ in range(args.steps))
    for number, tokens in enumerate(timer.batches(loader) if timer else loader):
        own.step(number)
        with timer.step() if timer else contextlib.nullcontext():
            with own.phase("forward", number), phase("forward"):
                loss = loss_against(tokens[:, 1:], model(tokens[:, :-1]))
            with own.phase("backward", number), phase("backward"):
                loss.backward()
            with own.phase("optimizer", number), phase("optimizer"):
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)
        if number % args.print_every == 0 and dist.get_rank() == 0:
            print(f"loss {loss.item():.3f}", flush=True)
    own.step(args.steps)
    seconds = own.seconds()
    if timer:
        timer.close()
    return seconds


def product_times(device: torch.device) -> dict[str, Any]:
    """One product by `hook.benchmark`, and by two events around a hundred of them."""
    size = 8192 if device.type == "cuda" else 256
    a = torch.randn(size, size, device=device, dtype=torch.bfloat16)
    b = torch.randn_like(a)
    out = torch.empty_like(a)
    measured = hook.benchmark(lambda: torch.matmul(a, b, out=out), iterations=_PRODUCTS)
    begin, end = _event(), _event()
    begin.record()
    for _ in range(_PRODUCTS):
        torch.matmul(a, b, out=out)
    end.record()
    _wait()
    waiting = hook.benchmark(lambda: (a[:64, :64] @ b[:64, :64]).sum().item(), iterations=_PRODUCTS)
    return {
        "benchmark": asdict(measured),
        "in_a_row_s": begin.elapsed_time(end) / 1e3 / _PRODUCTS,
        "that_synchronises": asdict(waiting),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--hidden", type=int, default=2048)
    parser.add_argument("--sequence", type=int, default=2048)
    parser.add_argument("--micro-batch", type=int, default=4)
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--print-every", type=int, default=10)
    parser.add_argument("--times", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--no-hook", action="store_true")
    parser.add_argument("--no-nvtx", action="store_true", help="a hook without ranges")
    args = parser.parse_args()
    device = join()
    seconds = train(args, device)
    rank = dist.get_rank()
    document: dict[str, Any] = {"seconds": seconds}
    if rank == 0 and not args.no_hook:
        document["product"] = product_times(device)
    dist.barrier()
    (args.times / f"rank-{rank}.json").write_text(json.dumps(document))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

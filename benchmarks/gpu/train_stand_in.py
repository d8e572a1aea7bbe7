"""A training job on the CPU in place of `train.py`, to try `captures.py` where there is no GPU.

torchrun --nproc-per-node 2 benchmarks/gpu/train_stand_in.py --steps 400
"""

from __future__ import annotations

import argparse
import datetime as dt
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

STEP_S = 0.1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--print-every", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    model = DistributedDataParallel(torch.nn.Linear(64, 64))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    if dist.get_rank() == 0:
        world = dist.get_world_size()
        _say(f"Building 1-D device mesh with ['dp_replicate'], [{world}]")
        _say(
            f"Training starts at step 1, with local batch size 8, global batch size {8 * world}, "
            f"sequence length 64, total steps {args.steps} (warmup 0)"
        )
    begin = time.perf_counter()
    for step in range(1, args.steps + 1):
        loss = model(torch.ones(8, 64)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        time.sleep(STEP_S)
        now = time.perf_counter()
        if dist.get_rank() == 0 and step % args.print_every == 0:
            seconds, begin = (now - begin) / args.print_every, now
            _say(
                f"step: {step:2}  loss: {loss.item():8.5f}  grad_norm:  1.0000  memory:  1.00GiB(1.00%)  "
                f"tps: {512 / seconds:,.0f}  tflops: 0.01  mfu: 0.01%"
            )
    dist.destroy_process_group()


def _say(text: str) -> None:
    now = dt.datetime.now().strftime("%Y-%m-%d %H:%M:%S,%f")[:-3]  # noqa: DTZ005  (as torchtitan prints it)
    print(f"[titan] {now} - root - INFO - {text}", flush=True)


if __name__ == "__main__":
    main()

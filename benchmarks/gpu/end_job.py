"""A small DDP job that trains until a file appears, and then ends as jobs do, with exit code 0.

    torchrun --nproc-per-node 2 benchmarks/gpu/end_job.py --end-file FILE

Started by `end_collisions.py`. Without a GPU it runs on CPUs with gloo, to try it.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from train import join

_WIDTH, _LAYERS, _BATCH = 1024, 8, 64
_STEP_S = 0.02


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--end-file", type=Path, required=True)
    args = parser.parse_args()
    device = join()
    layers = nn.Sequential(*(nn.Linear(_WIDTH, _WIDTH, device=device) for _ in range(_LAYERS)))
    model = DistributedDataParallel(layers, device_ids=[device.index] if device.type == "cuda" else None)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    batch = torch.randn(_BATCH, _WIDTH, device=device)
    ends = torch.zeros(1, device=device)
    step = 0
    while not ends.item():
        model(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        time.sleep(_STEP_S)
        # All ranks end after the same step.
        ends.fill_(float(args.end_file.exists()))
        dist.broadcast(ends, 0)
        step += 1
        if dist.get_rank() == 0 and step == 5:
            print("step 5", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

"""A loop of DDP on gloo: `ddp_loop.py [--spawn] STEPS`. Rank 0 prints its steps.

Rank and size come from the launcher's environment, or with --spawn from torch.multiprocessing.
"""

import os
import sys
import time
from pathlib import Path

import torch
from torch.distributed import destroy_process_group, init_process_group
from torch.nn.parallel import DistributedDataParallel

STEP_S = 0.02
LAUNCHERS = (
    ("RANK", "WORLD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
)


def train(rank, size, steps):
    torch.set_num_threads(1)
    init_process_group("gloo", rank=rank, world_size=size)
    model = DistributedDataParallel(torch.nn.Linear(8, 8))
    began_s = time.monotonic()
    for step in range(1, steps + 1):
        time.sleep(STEP_S)
        loss = model(torch.ones(4, 8)).square().mean()
        loss.backward()
        # An optimizer of PyTorch imports its compiler, which takes longer than all steps.
        with torch.no_grad():
            for weights in model.parameters():
                weights.add_(weights.grad, alpha=-0.01)
                weights.grad = None
        took_s, began_s = time.monotonic() - began_s, time.monotonic()
        if rank == 0:
            line = f"step {step}/{steps} | loss {loss.item():.4f} | step time: {took_s:.4f} s"
            sys.stdout.write(f"{line}\n")
            sys.stdout.flush()
    wait_for_the_agent()
    destroy_process_group()


def wait_for_the_agent():
    """Stay until the test has seen the ranks, for which perfd looks every few seconds."""
    while not Path(os.environ["SEEN"]).exists():
        time.sleep(0.05)


def launched():
    """Rank and size as the launcher says."""
    names = next(names for names in LAUNCHERS if names[0] in os.environ)
    return tuple(int(os.environ[name]) for name in names)


if __name__ == "__main__":
    steps = int(sys.argv[-1])
    if "--spawn" in sys.argv:
        torch.multiprocessing.spawn(train, args=(2, steps), nprocs=2)
    else:
        train(*launched(), steps)

"""Traces a few steps of a training loop with PyTorch's profiler: `torchrun profile_steps.py`, or `python`."""

import os
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile, schedule

RANK = int(os.environ.get("RANK", "0"))
FOLDER = Path("traces")

# Skip five steps, warm up the profiler for one, record three, and stop.
WHEN = schedule(skip_first=5, wait=0, warmup=1, active=3, repeat=1)


def write(profiler: profile) -> None:
    """One file per rank, which `perfd analyze traces/` reads together."""
    FOLDER.mkdir(exist_ok=True)
    profiler.export_chrome_trace(str(FOLDER / f"rank-{RANK}.json.gz"))


def main() -> None:
    """Train a small model, in place of a real one."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = torch.nn.Sequential(torch.nn.Linear(256, 1024), torch.nn.GELU(), torch.nn.Linear(1024, 256))
    model.to(device)
    optimizer = torch.optim.AdamW(model.parameters())
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if device == "cuda" else [])]
    with profile(activities=activities, schedule=WHEN, on_trace_ready=write, record_shapes=True) as profiler:
        for _ in range(12):
            batch = torch.randn(64, 256, device=device)
            loss = (model(batch) - batch).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            # The profiler counts steps by this call.
            profiler.step()


if __name__ == "__main__":
    main()

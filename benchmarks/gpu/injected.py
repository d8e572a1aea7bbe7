"""What can go wrong in `train.py`: from which step on, on which rank, and how much of it."""

from __future__ import annotations

import argparse
import os
import signal
import time

import torch
import torch.distributed as dist

FAULTS = (
    "none", "slow_rank", "slow_loader", "slow_loaders", "forced_sync", "tiny_kernels", "late_entry",
    "heavy_last_stage", "no_p2p", "sigstop", "forced_syncs", "all_tiny_kernels", "elementwise", "host_copies",
)  # fmt: skip
OF_ALL = frozenset({"slow_loaders", "forced_syncs", "all_tiny_kernels", "elementwise", "host_copies"})
"""What every rank does."""
_GB = 10**9


class Fault:
    """What goes wrong, on which rank, how much, and from which step on."""

    def __init__(self, args: argparse.Namespace, device: torch.device) -> None:
        self.kind, self.strength, self.first_step = args.fault, args.fault_strength, args.fault_from
        self.rank = args.fault_rank
        self.chosen = self.kind in OF_ALL or self.rank == dist.get_rank()
        self.began_unix_s: float | None = None
        self.here = False
        size = 4096 if device.type == "cuda" else 256
        self.matrix = torch.randn(size, size, device=device, dtype=torch.bfloat16)
        # A gigabyte on the GPU, and for copies one on the host that needs no staging.
        numbers = (_GB if device.type == "cuda" else 1000) // 4
        copies = self.kind == "host_copies"
        self.bulk = torch.zeros(numbers if copies or self.kind == "elementwise" else 0, device=device)
        self.on_host = torch.zeros(numbers if copies else 0, pin_memory=copies and device.type == "cuda")

    def at(self, step: int) -> None:
        """Called before each step."""
        if step < self.first_step or self.kind == "none":
            return
        if self.began_unix_s is None:
            self.began_unix_s = time.time()
            if dist.get_rank() == self.rank:
                print(f"[fault] {self.began_unix_s:.3f}", flush=True)
        self.here = self.chosen
        if self.here and self.kind == "sigstop":
            os.kill(os.getpid(), signal.SIGSTOP)

    def in_loader(self) -> None:
        if self.here and self.kind in {"slow_loader", "slow_loaders"}:
            time.sleep(self.strength)

    def in_step(self) -> None:
        """`strength` is in seconds, but of matrix products a count, and of the last two gigabytes."""
        if not self.here:
            return
        if self.kind == "slow_rank":
            for _ in range(int(self.strength)):
                self.matrix @ self.matrix
        if self.kind in {"forced_sync", "forced_syncs"}:
            if self.matrix.is_cuda:
                torch.cuda.synchronize()
            time.sleep(self.strength)
        if self.kind in {"tiny_kernels", "all_tiny_kernels"}:
            small = torch.zeros(8, device=self.matrix.device)
            for _ in range(int(self.strength * 100_000)):
                small.add_(1)
        if self.kind == "elementwise":
            for _ in range(int(self.strength)):
                self.bulk.add_(1)
        if self.kind == "host_copies":
            for _ in range(int(self.strength)):
                self.bulk.copy_(self.on_host, non_blocking=True)

    def before_backward(self) -> None:
        if self.here and self.kind == "late_entry":
            time.sleep(self.strength)

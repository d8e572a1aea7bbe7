"""Writes the traces of the documentation: `python -m tests.support.example_traces [FOLDER]`.

Four data-parallel ranks as torch's profiler sees them, made up: forward and backward of rank 2 take 40%
longer, and its peers wait for it in the all-reduce.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tests.support.traces import MATMUL, NCCL, Op, kineto, write_json

RANKS = range(4)
_SLOW_RANK = 2
_STEPS = 6
_STEP_US = 100_000.0
_LAUNCH_US = 20.0
_GROUP = {"pg_name": "0", "pg_desc": "default_pg", "ranks": list(RANKS)}


def main(folder: Path) -> None:
    """Write a file a rank."""
    folder.mkdir(parents=True, exist_ok=True)
    for rank in RANKS:
        path = folder / f"rank-{rank}.json.gz"
        trace = kineto(
            [op for step in range(_STEPS) for op in _step(rank, step)],
            steps={step: (step * _STEP_US, (step + 1) * _STEP_US) for step in range(_STEPS)},
            rank=rank,
            world_size=len(RANKS),
            groups=[_GROUP],
            device=rank,
        )
        write_json(path, trace, packed=True)


def _step(rank: int, step: int) -> list[Op]:
    """Forward, backward, the all-reduce of the gradients, the optimizer."""
    begin = step * _STEP_US + 1_000
    scale = 1.4 if rank == _SLOW_RANK else 1.0
    forward = begin + 18_000 * scale
    backward = forward + 36_000 * scale
    reduced = begin + 54_000 * 1.4 + 9_000
    arguments = {
        "Process Group Name": "0",
        "Process Group Description": "default_pg",
        "Process Group Ranks": str(list(RANKS)),
        "Collective name": "allreduce",
        "In msg nelems": 350_000_000,
        "dtype": "BFloat16",
        "Seq": step,
    }
    return [
        Op(MATMUL, begin, forward, launched=begin - _LAUNCH_US),
        Op(MATMUL, forward, backward, launched=begin - _LAUNCH_US / 2),
        Op(NCCL, backward, reduced, stream=20, launched=begin, args=arguments),
        Op(MATMUL, reduced, reduced + 12_000, launched=begin + _LAUNCH_US),
    ]


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "docs/examples/slow-rank"))

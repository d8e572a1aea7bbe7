"""Megatron-LM's `pretrain_gpt.py`, unchanged, with faults that are switched on and off by step.

    torchrun --nproc-per-node 4 benchmarks/gpu/megatron_job.py --plan plan.json --truth FOLDER
        --megatron FOLDER -- ARGUMENTS OF pretrain_gpt.py

The plan is that of `phases.py`; what was done is written as `phase_injector.py` says.
"""

from __future__ import annotations

import argparse
import importlib
import os
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from phase_injector import PhaseInjector


def inject(injector: PhaseInjector) -> None:
    """Have Megatron-LM call the injector at each step, micro-batch and batch."""
    training = importlib.import_module("megatron.training.training")
    schedules = importlib.import_module("megatron.core.pipeline_parallel.schedules")
    training.train_step = after(injector.begin_step, training.train_step)
    schedules.forward_step = after(injector.begin_micro_batch, schedules.forward_step)
    injector.slow_loaders()


def after(first: Callable[[], None], then: Callable[..., Any]) -> Callable[..., Any]:
    """A function that calls both, in this order, and returns what the second returns."""

    def both(*args: object, **options: object) -> object:
        first()
        return then(*args, **options)

    return both


def micro_batches_of(arguments: list[str], world_size: int) -> int:
    """How many micro-batches of a step each rank runs, by Megatron-LM's arguments."""
    parser = argparse.ArgumentParser(allow_abbrev=False, add_help=False)
    for name in ("tensor-model-parallel-size", "pipeline-model-parallel-size"):
        parser.add_argument(f"--{name}", type=int, default=1)
    parser.add_argument("--micro-batch-size", type=int, required=True)
    parser.add_argument("--global-batch-size", type=int, required=True)
    args, _ = parser.parse_known_args(arguments)
    replicas = world_size // (args.tensor_model_parallel_size * args.pipeline_model_parallel_size)
    return args.global_batch_size // (args.micro_batch_size * replicas)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--plan", type=Path, required=True)
    parser.add_argument("--truth", type=Path, required=True)
    parser.add_argument("--megatron", type=Path, required=True)
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="those of pretrain_gpt.py, after --")
    args = parser.parse_args()
    arguments = args.arguments[1:] if args.arguments[:1] == ["--"] else args.arguments
    sys.path.insert(0, str(args.megatron))
    injector = PhaseInjector(
        args.plan,
        args.truth,
        int(os.environ["RANK"]),
        micro_batches=micro_batches_of(arguments, int(os.environ["WORLD_SIZE"])),
    )
    inject(injector)
    script = str(args.megatron / "pretrain_gpt.py")
    sys.argv = [script, *arguments]
    try:
        runpy.run_path(script, run_name="__main__")
    finally:
        injector.close()


if __name__ == "__main__":
    main()

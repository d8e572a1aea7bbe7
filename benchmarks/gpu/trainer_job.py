"""A transformers `Trainer` on random tokens, with faults switched on and off by step.

    torchrun --nproc-per-node 2 benchmarks/gpu/trainer_job.py --plan plan.json --truth FOLDER

The plan is that of `phases.py`; what was done is written as `phase_injector.py` says. The job knows nothing
of perfd and prints what `Trainer` prints: a progress bar, and every five steps a dictionary with the loss.
Without a GPU it runs on CPUs with gloo, to try it.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from phase_injector import PhaseInjector
from phases import job_arguments, load
from torch import nn
from train import VOCABULARY
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments

_SHARDED = {
    "fsdp": "full_shard auto_wrap",
    "fsdp_config": {"transformer_layer_cls_to_wrap": ["LlamaDecoderLayer"], "fsdp_version": 2},
}


_EVALUATED = 64
"""Sequences of one evaluation."""


def _checked(steps: int) -> dict[str, Any]:
    """An evaluation and a checkpoint of the model after so many steps."""
    return {
        "eval_strategy": "steps",
        "eval_steps": steps,
        "save_strategy": "steps",
        "save_steps": steps,
        "save_only_model": True,
        "save_total_limit": 1,
    }


class Sequences(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    """Random token sequences with their labels."""

    def __init__(self, sequence: int, count: int) -> None:
        self._sequence, self._count = sequence, count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        generator = torch.Generator().manual_seed(index)
        tokens = torch.randint(VOCABULARY, (self._sequence,), generator=generator)
        return {"input_ids": tokens, "labels": tokens}


class Steps(TrainerCallback):
    """Reports each step to the injector."""

    def __init__(self, injector: PhaseInjector) -> None:
        self._injector = injector

    def on_step_begin(self, *args: object, **options: object) -> None:
        del args, options
        self._injector.begin_step()


class FaultyTrainer(Trainer):
    """Reports each micro-batch to the injector, and trains as `Trainer` does."""

    injector: PhaseInjector

    def training_step(
        self,
        model: nn.Module,
        inputs: dict[str, torch.Tensor],
        num_items_in_batch: torch.Tensor | None = None,
    ) -> torch.Tensor:
        self.injector.begin_micro_batch()
        return super().training_step(model, inputs, num_items_in_batch)


def main() -> None:
    parser = job_arguments(__doc__)
    parser.add_argument("--fsdp", action="store_true", help="parameters sharded over the ranks")
    parser.add_argument("--evaluate-every", type=int, metavar="STEPS", help="and write a checkpoint")
    parser.add_argument("--print-every", type=int, default=5, metavar="STEPS")
    args = parser.parse_args()
    rank, world_size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    steps = load(args.plan)[-1].last_step
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=args.hidden,
        intermediate_size=4 * args.hidden,
        num_hidden_layers=args.layers,
        num_attention_heads=max(1, args.hidden // 128),
        max_position_embeddings=args.sequence,
    )
    options = TrainingArguments(
        output_dir=str(Path(tempfile.gettempdir()) / "perfd-benchmark-trainer"),
        max_steps=steps,
        per_device_train_batch_size=args.micro_batch,
        gradient_accumulation_steps=args.accumulate,
        bf16=torch.cuda.is_available(),
        use_cpu=not torch.cuda.is_available(),
        logging_steps=args.print_every,
        **(_checked(args.evaluate_every) if args.evaluate_every else {"save_strategy": "no"}),
        report_to=[],
        dataloader_num_workers=2,
        include_num_input_tokens_seen="all",
        ddp_find_unused_parameters=False,
        **(_SHARDED if args.fsdp else {}),
    )
    injector = PhaseInjector(args.plan, args.truth, rank, micro_batches=args.accumulate)
    injector.slow_loaders()
    trainer = FaultyTrainer(
        model=LlamaForCausalLM(config),
        args=options,
        train_dataset=Sequences(args.sequence, steps * args.accumulate * args.micro_batch * world_size),
        eval_dataset=Sequences(args.sequence, _EVALUATED),
        callbacks=[Steps(injector)],
    )
    trainer.injector = injector
    try:
        trainer.train()
    finally:
        injector.close()
    trainer.accelerator.end_training()
    if not torch.cuda.is_available():
        # With gloo of PyTorch 2.13 the interpreter hangs at its end.
        sys.stdout.flush()
        os._exit(0)


if __name__ == "__main__":
    main()

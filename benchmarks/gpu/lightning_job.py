"""A Lightning `Trainer` with DDP or FSDP by its own launcher, with faults switched on and off by step.

    python benchmarks/gpu/lightning_job.py --plan plan.json --truth FOLDER --devices 2 [--strategy fsdp]

The plan is that of `phases.py`; what was done is written as `phase_injector.py` says. The job knows nothing
of perfd and prints Lightning's progress bar. Without a GPU it runs on CPUs with gloo, to try it.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import lightning
import torch
from lightning.pytorch.strategies import FSDPStrategy
from loop_job import Tokens
from phase_injector import PhaseInjector
from phases import job_arguments, load
from torch.utils.data import DataLoader
from train import Block, Part, loss_against

_EVALUATED = 64
"""Sequences of one validation."""


class Model(lightning.LightningModule):
    """The small GPT of `train.py`."""

    def __init__(self, layers: int, hidden: int) -> None:
        super().__init__()
        self.part = Part(layers, hidden, first=True, last=True)

    def training_step(self, tokens: torch.Tensor, batch_index: int) -> torch.Tensor:
        del batch_index
        loss = loss_against(tokens[:, 1:], self.part(tokens[:, :-1]))
        self.log("loss", loss, prog_bar=True)
        return loss

    def validation_step(self, tokens: torch.Tensor, batch_index: int) -> None:
        del batch_index
        self.log("validation_loss", loss_against(tokens[:, 1:], self.part(tokens[:, :-1])), sync_dist=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-4)


class Injection(lightning.Callback):
    """Reports each step and micro-batch to the injector."""

    def __init__(self, plan: Path, truth: Path, accumulate: int) -> None:
        self._plan, self._truth, self._accumulate = plan, truth, accumulate
        self._injector: PhaseInjector | None = None

    def setup(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule, stage: str) -> None:
        del pl_module, stage
        self._injector = PhaseInjector(
            self._plan, self._truth, trainer.global_rank, micro_batches=self._accumulate
        )
        self._injector.slow_loaders()

    def on_train_batch_start(
        self, trainer: lightning.Trainer, pl_module: lightning.LightningModule, batch: object, batch_idx: int
    ) -> None:
        del trainer, pl_module, batch
        assert self._injector is not None
        if batch_idx % self._accumulate == 0:
            self._injector.begin_step()
        self._injector.begin_micro_batch()

    def teardown(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule, stage: str) -> None:
        del trainer, pl_module, stage
        if self._injector is not None:
            self._injector.close()


def strategy_of(args: argparse.Namespace) -> str | FSDPStrategy:
    if args.devices == 1:
        return "auto"
    return "ddp" if args.strategy == "ddp" else FSDPStrategy(auto_wrap_policy={Block})


def main() -> None:
    parser = job_arguments(__doc__)
    parser.add_argument("--devices", type=int, default=2)
    parser.add_argument("--strategy", choices=("ddp", "fsdp"), default="ddp")
    parser.add_argument("--evaluate-every", type=int, metavar="STEPS", help="and write a checkpoint")
    args = parser.parse_args()
    cuda = torch.cuda.is_available()
    steps = load(args.plan)[-1].last_step
    data = Tokens(args.sequence, steps * args.accumulate * args.micro_batch * args.devices)
    trainer = lightning.Trainer(
        max_steps=steps,
        accelerator="gpu" if cuda else "cpu",
        devices=args.devices,
        strategy=strategy_of(args),
        precision="bf16-mixed" if cuda else "32-true",
        accumulate_grad_batches=args.accumulate,
        logger=False,
        enable_checkpointing=bool(args.evaluate_every),
        default_root_dir=Path(tempfile.gettempdir()) / "perfd-benchmark-lightning",
        enable_model_summary=False,
        val_check_interval=args.evaluate_every and args.evaluate_every * args.accumulate,
        check_val_every_n_epoch=None,
        num_sanity_val_steps=0,
        callbacks=[Injection(args.plan, args.truth, args.accumulate)],
    )
    validated = DataLoader(Tokens(args.sequence, _EVALUATED), batch_size=args.micro_batch, num_workers=2)
    trainer.fit(
        Model(args.layers, args.hidden),
        DataLoader(data, batch_size=args.micro_batch, num_workers=2, pin_memory=cuda),
        validated if args.evaluate_every else None,
    )


if __name__ == "__main__":
    main()

"""A small loop with the one line for lightning."""

import sys

import lightning
import torch
from torch.utils.data import DataLoader, TensorDataset

from perfd.hook.lightning import PerfdCallback


class Model(lightning.LightningModule):
    """A layer."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(32, 32)

    def training_step(self, batch, _index):
        return self.layer(batch[0]).pow(2).mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.01)


data = DataLoader(TensorDataset(torch.randn(96, 32)), batch_size=4)
trainer = lightning.Trainer(
    max_steps=12,
    accumulate_grad_batches=2,
    accelerator="cpu",
    devices=1,
    logger=False,
    enable_checkpointing=False,
    default_root_dir=sys.argv[1],
    callbacks=[PerfdCallback(samples=8, tokens=128, count_flops=True)],
)
trainer.fit(Model(), data)

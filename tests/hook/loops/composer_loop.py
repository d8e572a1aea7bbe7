"""A small loop with the one line for Composer."""

import sys

import torch
from composer import Trainer
from composer.models import ComposerModel
from torch.utils.data import DataLoader, TensorDataset

from perfd.hook.composer import PerfdCallback


class Model(ComposerModel):
    """A layer."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(32, 32)

    def forward(self, batch):
        return self.layer(batch[0])

    def loss(self, outputs, _batch):
        return outputs.pow(2).mean()

    def eval_forward(self, batch, outputs=None):
        return self.forward(batch) if outputs is None else outputs


model = Model()
trainer = Trainer(
    model=model,
    train_dataloader=DataLoader(TensorDataset(torch.randn(96, 32)), batch_size=8),
    optimizers=torch.optim.SGD(model.parameters(), 0.01),
    max_duration="12ba",
    device="cpu",
    device_train_microbatch_size=4,
    progress_bar=False,
    save_folder=None,
    run_name=sys.argv[1].rsplit("/", 1)[-1],
    callbacks=[PerfdCallback(count_flops=True)],
)
trainer.fit()

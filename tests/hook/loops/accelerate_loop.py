"""A small loop with the one line for accelerate."""

import torch
from accelerate import Accelerator

from perfd.hook.accelerate import PerfdTracker

accelerator = Accelerator(cpu=True, log_with=PerfdTracker())
accelerator.init_trackers("loop")
model = torch.nn.Linear(32, 32)
model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), 0.01))
for step in range(1, 13):
    loss = model(torch.randn(8, 32)).pow(2).mean()
    accelerator.backward(loss)
    optimizer.step()
    optimizer.zero_grad()
    accelerator.log({"loss": float(loss), "samples": 8, "tokens": 128}, step=step)
accelerator.end_training()

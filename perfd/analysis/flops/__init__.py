"""FLOPs of a training step from the model's shape, and the peaks of GPUs."""

"""FLOPs of a training step from the model's shape, and the peaks of GPUs.

Modules are imported one by one: the trace readers need the peaks without the records of jobs.
"""

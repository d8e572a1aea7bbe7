"""NCCL operations matched across ranks: transfer against waiting, rates, and their arrangement in steps.

Modules are imported one by one: traces need the split of transfer and waiting without what a job needs.
"""

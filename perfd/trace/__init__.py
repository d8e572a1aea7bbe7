"""Reading profilers' traces: what a GPU did, from Nsight Systems, PyTorch and JAX, in one form."""

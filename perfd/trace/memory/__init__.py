"""What a GPU's memory holds: snapshots of PyTorch's allocator."""

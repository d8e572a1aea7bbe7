"""The agent's end of the gRPC stream: connects, sends batches, receives acknowledgements and requests."""

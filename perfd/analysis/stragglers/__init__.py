"""Compares ranks with their peers: who is slower, who arrives late."""

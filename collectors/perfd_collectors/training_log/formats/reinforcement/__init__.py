"""Logs of reinforcement learning, whose step is a round of generation and updates."""

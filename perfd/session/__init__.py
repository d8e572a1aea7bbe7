"""An agent and an aggregator in one process: around a command, or around a recording."""

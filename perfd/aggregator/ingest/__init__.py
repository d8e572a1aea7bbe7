"""Receives the streams of agents and applies their records to the state."""

"""Turns the state into series and serves them as a Prometheus page."""

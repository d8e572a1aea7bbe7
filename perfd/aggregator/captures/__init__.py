"""Connects captures to agents, alerts and reports."""

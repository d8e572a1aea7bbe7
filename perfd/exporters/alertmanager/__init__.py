"""Sends alerts to an Alertmanager."""

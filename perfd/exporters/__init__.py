"""Exports numbers and alerts to other systems."""

"""Reads and checks rules files."""

"""Captures: who is traced, when, with which tool, and within which limits."""

"""Captures: which ranks are traced, when, with which tool, and within which limits."""

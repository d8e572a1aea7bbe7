"""Builds reports from summaries, traces and rooflines."""

"""Builds reports from summaries, traces and rooflines.

Modules are imported one by one: a report of a trace needs nothing of one of a job.
"""

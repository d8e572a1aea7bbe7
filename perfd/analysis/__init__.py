"""Derived numbers: pure functions from what a job reported to what it means. No I/O, no clock."""

"""Fakes, stand-ins and real services that several tests and benchmarks share."""

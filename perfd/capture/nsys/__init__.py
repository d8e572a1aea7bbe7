"""Captures with Nsight Systems."""

"""Reads the SQLite exports of Nsight Systems."""

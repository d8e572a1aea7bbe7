"""Writes TensorBoard event files."""

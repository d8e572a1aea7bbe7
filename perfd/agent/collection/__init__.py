"""Runs the collectors of a node on schedule and packs their records into batches."""

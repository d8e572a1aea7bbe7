"""Runs captures on a node: tools, storage, guards, sharing and retention."""

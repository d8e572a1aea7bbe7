"""Serving: what a server measured, what its hardware allows, and which knob closes the gap.

Pure, and free of numpy: the agent reduces histograms with it.
"""

"""Steady steps and where their time goes: phases, GPU activity, pipeline bubble, throttling, MFU."""

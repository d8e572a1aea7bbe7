"""Analysis of traces for commands, imported only when used because it imports NumPy."""

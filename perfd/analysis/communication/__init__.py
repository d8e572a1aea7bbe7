"""How much of a step is communication, and how much of it is exposed."""

"""perfd: how far a GPU job is from what its hardware allows, where the time goes, and what is to blame."""

__version__ = "0.1.0"

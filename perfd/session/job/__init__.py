"""The process that `perfd run` starts, and its standard streams."""

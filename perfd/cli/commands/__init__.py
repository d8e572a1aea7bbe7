"""One module per command of `perfd`, named after it."""

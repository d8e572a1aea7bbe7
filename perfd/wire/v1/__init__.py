"""The first version of the wire; fields are never renumbered."""

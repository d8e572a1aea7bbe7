"""Which ranks a capture covers."""

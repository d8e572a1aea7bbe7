"""Jobs that stopped making progress, and errors in their logs."""

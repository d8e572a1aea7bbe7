"""One parser per training framework's log format."""

"""What travels between `perfd run` and its monitor process."""

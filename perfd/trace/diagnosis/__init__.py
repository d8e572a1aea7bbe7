"""What limits a captured job, from the breakdown of its ranks."""

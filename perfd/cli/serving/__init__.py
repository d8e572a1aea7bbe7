"""Where the commands about servers read, and how they watch one."""

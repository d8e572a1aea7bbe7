"""Where the time of each rank went: kernels, collectives, ranges, idle time."""

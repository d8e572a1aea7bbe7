"""One form for every profiler's trace: operations, host calls, ranges, steps."""

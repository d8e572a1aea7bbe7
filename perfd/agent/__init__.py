"""The part of perfd that runs on each node: reads sources and streams their records."""

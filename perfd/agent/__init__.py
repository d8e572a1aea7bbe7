"""The part of perfd that runs on each node: it reads sources and streams what it reads."""

"""Which communicator serves which parallel dimension, where ranks run, and how fast their links are."""

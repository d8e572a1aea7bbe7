"""The buffer on disk that keeps batches until the aggregator has acknowledged them."""

from perfd.agent.spool.spool import Spool, SpoolStats

__all__ = [
    "Spool",
    "SpoolStats",
]

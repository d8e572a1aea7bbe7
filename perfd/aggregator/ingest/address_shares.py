"""How much of what all agents share the clients of one address may have."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager


class AddressShares:
    """Room for so many streams or bytes, of which one address has at most three quarters."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._most_of_address = most - most // 4
        self._held: Counter[str] = Counter()
        self._total = 0

    @contextmanager
    def hold(self, address: str, amount: int = 1) -> Iterator[bool]:
        """Have room until the end of the block; False if there is none, and then nothing is held."""
        if self._total + amount > self._most or self._held[address] + amount > self._most_of_address:
            yield False
            return
        self._add(address, amount)
        try:
            yield True
        finally:
            self._add(address, -amount)

    def _add(self, address: str, amount: int) -> None:
        self._total += amount
        self._held[address] += amount
        if not self._held[address]:
            del self._held[address]

    def __len__(self) -> int:
        """How much is held by all addresses."""
        return self._total


def address_of(peer: str) -> str:
    """A client's address without its port, of what gRPC calls a peer, such as `ipv4:10.0.0.7:4711`."""
    return peer.rpartition(":")[0] or peer

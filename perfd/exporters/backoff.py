"""When to try again after a failure: exponential backoff with full jitter.

https://aws.amazon.com/blogs/architecture/exponential-backoff-and-jitter/
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """Doubles the longest wait with each failure. Immutable: each step returns a new one."""

    initial_s: float = 1.0
    max_s: float = 60.0
    failures: int = 0
    next_try_s: float = float("-inf")

    def due(self, now_s: float) -> bool:
        """Whether it is time for the next attempt."""
        return now_s >= self.next_try_s

    def failed(self, now_s: float, *, chance: float, at_least_s: float | None = None) -> Backoff:
        """After a failure; `chance` is drawn from 0 to 1, `at_least_s` is the receiver's own minimum."""
        # 2**30 is beyond any sensible limit, and does not overflow.
        longest_s = min(self.max_s, self.initial_s * 2.0 ** min(self.failures, 30))
        # Uniform from 0, so that clients of one failure do not all return at the same time.
        wait_s = max(chance * longest_s, min(at_least_s or 0.0, self.max_s))
        return Backoff(
            initial_s=self.initial_s,
            max_s=self.max_s,
            failures=self.failures + 1,
            next_try_s=now_s + wait_s,
        )

    def succeeded(self) -> Backoff:
        """After a successful attempt."""
        return Backoff(initial_s=self.initial_s, max_s=self.max_s)

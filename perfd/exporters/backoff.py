"""When to try again after a failure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """Doubles the wait from failure to failure. A value: each step gives a new one."""

    initial_s: float = 1.0
    max_s: float = 60.0
    failures: int = 0
    next_try_s: float = float("-inf")

    def due(self, now_s: float) -> bool:
        """Whether it is time for the next attempt."""
        return now_s >= self.next_try_s

    def failed(self, now_s: float, at_least_s: float | None = None) -> Backoff:
        """After an attempt that failed; `at_least_s` is what the other side asked for."""
        # 2**30 is beyond any bound that makes sense, and no overflow.
        wait_s = min(self.max_s, self.initial_s * 2.0 ** min(self.failures, 30))
        wait_s = max(wait_s, min(at_least_s or 0.0, self.max_s))
        return Backoff(
            initial_s=self.initial_s,
            max_s=self.max_s,
            failures=self.failures + 1,
            next_try_s=now_s + wait_s,
        )

    def succeeded(self) -> Backoff:
        """After an attempt that went well."""
        return Backoff(initial_s=self.initial_s, max_s=self.max_s)

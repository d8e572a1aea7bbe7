"""How many cases a property test generates."""

from __future__ import annotations

import os

ALL = "PERFD_ALL_EXAMPLES"
"""The variable that `make test-slow` sets, which runs every property test again, and `make test ALL=1`."""
_FEWER = 4
"""Of its cases, `make test` generates one of so many: property tests would take a fifth of its time."""


def examples(count: int) -> int:
    """`count`, or its share in a run that is to be fast."""
    return count if ALL in os.environ else max(1, count // _FEWER)

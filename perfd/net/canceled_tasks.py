"""Ends tasks for good: one that takes its cancellation for an answer is canceled again."""

from __future__ import annotations

import asyncio
from typing import Any

_CLEANED_UP_WITHIN_S = 5.0
"""Longer than what tasks do after their cancellation takes: that is not to be interrupted."""


async def end_tasks(*tasks: asyncio.Future[Any], again_after_s: float = _CLEANED_UP_WITHIN_S) -> None:
    """Cancel tasks, again and again until they end; what they raise is dropped.

    Up to Python 3.11 `asyncio.wait_for`, which libraries use, returns its result instead of a cancellation
    that comes at the same moment: a loop around it would go on for ever.
    """
    while left := [task for task in tasks if not task.done()]:
        for task in left:
            task.cancel()
        await asyncio.wait(left, timeout=again_after_s)
    for task in tasks:
        if not task.cancelled():
            task.exception()

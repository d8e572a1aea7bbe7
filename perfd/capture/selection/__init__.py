"""Which ranks a capture covers."""

from perfd.capture.selection.capture_id import check_capture_id, slug
from perfd.capture.selection.rank_selection import (
    JobView,
    RankSelection,
    RankView,
    by_hand,
    check_selector,
    select,
    slow_rank_of,
)

__all__ = [
    "JobView",
    "RankSelection",
    "RankView",
    "by_hand",
    "check_capture_id",
    "check_selector",
    "select",
    "slow_rank_of",
    "slug",
]

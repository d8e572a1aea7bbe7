"""Who may speak for a job: any process of the node can write to the hook's socket."""

from __future__ import annotations

_FORGOTTEN_AFTER_S = 60.0
_MOST_JOBS = 1024


class SenderAuth:
    """The user of each job that is heard of: the first who speaks, until nothing came for a minute.

    The listener's own user, as of a job under `perfd run`, comes before any other: a stranger who was first
    keeps nobody out.
    """

    def __init__(self, own_uid: int) -> None:
        self._own_uid = own_uid
        self._heard: dict[str, tuple[int, float]] = {}

    def accept(self, job: str, uid: int, now_s: float) -> bool:
        """Whether a datagram of a user counts for a job; if it does, that user is heard."""
        user, heard_s = self._heard.get(job, (uid, now_s))
        if uid not in {user, self._own_uid} and now_s - heard_s <= _FORGOTTEN_AFTER_S:
            return False
        if job not in self._heard and len(self._heard) >= _MOST_JOBS and not self._forget(now_s):
            return False
        self._heard[job] = uid, now_s
        return True

    def _forget(self, now_s: float) -> bool:
        """Make room; whether there is some."""
        self._heard = {
            job: (user, heard_s)
            for job, (user, heard_s) in self._heard.items()
            if now_s - heard_s <= _FORGOTTEN_AFTER_S
        }
        return len(self._heard) < _MOST_JOBS

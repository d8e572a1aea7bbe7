"""Which user may send for a job: any process of the node can write to the hook's socket."""

from __future__ import annotations

_FORGOTTEN_AFTER_S = 60.0
"""Without a message for so long a job has no user. Chosen, not measured: far above a step's time."""
_MAX_JOBS = 1024
"""Jobs with a user at a time; bounds memory."""


class SenderAuth:
    """Binds each job to the user of its first message, until none came for a minute.

    The agent's own user, as of a job under `perfd run`, takes precedence: another user who was first cannot
    lock it out.
    """

    def __init__(self, own_uid: int) -> None:
        self._own_uid = own_uid
        self._users: dict[str, tuple[int, float]] = {}

    def accept(self, job: str, uid: int, now_s: float) -> bool:
        """Whether to accept a user's datagram for a job; if so, the job is bound to that user."""
        user, last_s = self._users.get(job, (uid, now_s))
        if uid not in {user, self._own_uid} and now_s - last_s <= _FORGOTTEN_AFTER_S:
            return False
        if job not in self._users and len(self._users) >= _MAX_JOBS and not self._forget(now_s):
            return False
        self._users[job] = uid, now_s
        return True

    def _forget(self, now_s: float) -> bool:
        """Drop jobs without recent messages; returns whether there is room for another one."""
        self._users = {
            job: (user, last_s)
            for job, (user, last_s) in self._users.items()
            if now_s - last_s <= _FORGOTTEN_AFTER_S
        }
        return len(self._users) < _MAX_JOBS

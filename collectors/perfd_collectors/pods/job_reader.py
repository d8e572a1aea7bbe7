"""Why the controller of a Kubernetes Job deleted a pod: its deadline, its failures, or neither."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import NamedTuple
from urllib.parse import quote

import msgspec

from perfd.model import JobOutcome
from perfd_collectors.pods.api_access import NotFoundError
from perfd_collectors.pods.object_reader import ObjectReader

log = logging.getLogger(__name__)


class DeletedPod(NamedTuple):
    """A pod of a Job that was deleted."""

    namespace: str
    job: str
    """Name of the object Job that controls it."""
    uid: str
    ended: bool
    """Whether it had ended. Before Kubernetes 1.31 a Job's condition comes after its pods' deletion."""


@dataclass(frozen=True, slots=True)
class JobCause:
    """What a Job says of why its pods were deleted."""

    outcome: JobOutcome | None = None
    """None: nothing, as when a user deleted them, or the Job."""


class _Condition(msgspec.Struct):
    type: str = ""
    status: str = ""
    reason: str = ""


class _Status(msgspec.Struct):
    conditions: list[_Condition] | None = None


class _Job(msgspec.Struct):
    status: _Status = msgspec.field(default_factory=_Status)


_DECODER = msgspec.json.Decoder(_Job)
_ENDS = {
    "Failed": JobOutcome.FAILED,
    "FailureTarget": JobOutcome.FAILED,
    "Complete": JobOutcome.COMPLETED,
    "SuccessCriteriaMet": JobOutcome.COMPLETED,
    # Kueue takes a job's nodes back so.
    "Suspended": JobOutcome.PREEMPTED,
}
"""By type of condition; the controller deletes pods of a Job that has one of them."""


def cause_of(document: bytes) -> JobCause:
    """What a Job of the API says; raises `msgspec.MsgspecError` if that is none."""
    for condition in _DECODER.decode(document).status.conditions or ():
        if condition.status == "True" and condition.type in _ENDS:
            late = condition.reason == "DeadlineExceeded"
            return JobCause(JobOutcome.TIME_LIMIT if late else _ENDS[condition.type])
    return JobCause()


class JobReader(ObjectReader[DeletedPod, JobCause]):
    """Asks for the Job of each pod that was deleted, at most twice, and for no other."""

    def _read(self, key: DeletedPod) -> JobCause:
        names = quote(key.namespace, safe=""), quote(key.job, safe="")
        try:
            return cause_of(self._get("/apis/batch/v1/namespaces/{}/jobs/{}".format(*names)))
        except NotFoundError:
            return JobCause()

    def _unknown(self, key: DeletedPod, problem: str, *, new: bool) -> JobCause:
        if new:
            log.warning("A Job cannot be read: that its deadline or failures ended it is not known, "
                        "and its pods count as deleted by a user.",
                        extra={"namespace": key.namespace, "reason": problem})  # fmt: skip
        return JobCause()

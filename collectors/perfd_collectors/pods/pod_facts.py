"""What perfd needs of what the API server says of a pod."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

import msgspec

from perfd.model import JobOutcome


class _Owner(msgspec.Struct, rename="camel"):
    api_version: str = ""
    kind: str = ""
    name: str = ""
    controller: bool = False


class _Metadata(msgspec.Struct, rename="camel"):
    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    labels: dict[str, str] = {}
    owner_references: list[_Owner] = []
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    """When it is killed at the latest, after its grace period."""
    deletion_grace_period_seconds: float = 0.0


class _Terminated(msgspec.Struct, rename="camel"):
    exit_code: int = 0
    reason: str = ""
    finished_at: str | None = None


class _State(msgspec.Struct, rename="camel"):
    terminated: _Terminated | None = None


class _ContainerStatus(msgspec.Struct, rename="camel"):
    name: str = ""
    state: _State = msgspec.field(default_factory=_State)


class _Condition(msgspec.Struct, rename="camel"):
    type: str = ""
    status: str = ""
    reason: str = ""


class _Status(msgspec.Struct, rename="camel"):
    phase: str = ""
    reason: str = ""
    message: str = ""
    conditions: list[_Condition] = []
    container_statuses: list[_ContainerStatus] = []


class _Resources(msgspec.Struct):
    limits: dict[str, msgspec.Raw] = {}


class _Container(msgspec.Struct):
    resources: _Resources = msgspec.field(default_factory=_Resources)


class _Spec(msgspec.Struct, rename="camel"):
    service_account_name: str = ""
    containers: list[_Container] | None = None
    """Null in a bookmark, which is an empty pod."""


class ApiPod(msgspec.Struct, rename="camel"):
    """A pod of the API; fields that are not named here are ignored."""

    metadata: _Metadata = msgspec.field(default_factory=_Metadata)
    spec: _Spec = msgspec.field(default_factory=_Spec)
    status: _Status = msgspec.field(default_factory=_Status)


_GPU = "nvidia.com/"


@dataclass(frozen=True, slots=True, kw_only=True)
class PodEnd:
    """How a pod ended."""

    outcome: JobOutcome
    exit_code: int | None = None
    time_unix_s: float | None = None
    deleted: bool = False
    """It was `cancelled` by the deletion of the pod, whoever asked for that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodFacts:
    """A pod: who it is, what it belongs to, and whether it still runs."""

    namespace: str
    name: str
    uid: str
    labels: Mapping[str, str]
    owner_kind: str = ""
    owner_name: str = ""
    batch_job: str = ""
    """The Job of Kubernetes (`batch/v1`) that controls it; empty if none does."""
    service_account: str = ""
    created_unix_s: float | None = None
    deleted_unix_s: float | None = None
    """When its deletion was requested; it may still run."""
    has_gpu: bool = False
    """One of its containers has a limit on NVIDIA's GPUs."""
    end: PodEnd | None = None


def facts_of(pod: ApiPod, before: PodFacts | None = None) -> PodFacts:
    """What perfd needs of a pod of the API, of which `before` was known.

    The kubelet deletes a pod for good once its containers have ended, and the time at which its deletion was
    requested is lost.
    """
    deletions = [_deleted_unix_s(pod), before.deleted_unix_s if before else None]
    deleted_unix_s = min((one for one in deletions if one is not None), default=None)
    meta = pod.metadata
    owner = next((one for one in meta.owner_references if one.controller), _Owner())
    return PodFacts(
        namespace=meta.namespace,
        name=meta.name,
        uid=meta.uid,
        labels=meta.labels,
        owner_kind=owner.kind,
        owner_name=owner.name,
        batch_job=owner.name if (owner.kind, owner.api_version) == ("Job", "batch/v1") else "",
        created_unix_s=_unix_s(meta.creation_timestamp),
        deleted_unix_s=deleted_unix_s,
        service_account=pod.spec.service_account_name,
        has_gpu=any(
            name.startswith(_GPU)
            for container in pod.spec.containers or ()
            for name in container.resources.limits
        ),
        end=_end(pod, deleted_unix_s),
    )


_DISRUPTIONS = {
    "PreemptionByScheduler": JobOutcome.PREEMPTED,
    "EvictionByEvictionAPI": JobOutcome.PREEMPTED,
    "DeletionByTaintManager": JobOutcome.NODE_FAILURE,
    "DeletionByPodGC": JobOutcome.NODE_FAILURE,
    "TerminationByKubelet": JobOutcome.PREEMPTED,
}
"""By the reason of the condition DisruptionTarget (stable since Kubernetes 1.31)."""


def _end(pod: ApiPod, deleted_unix_s: float | None) -> PodEnd | None:
    status = pod.status
    if status.phase not in {"Succeeded", "Failed"}:
        return None
    ended = [one.state.terminated for one in status.container_statuses if one.state.terminated is not None]
    worst = max(ended, key=lambda one: (one.reason == "OOMKilled", one.exit_code != 0), default=None)
    times = [moment for one in ended if (moment := _unix_s(one.finished_at)) is not None]
    # Times of the API have whole seconds.
    deleted = deleted_unix_s is not None and all(end_s >= deleted_unix_s - 1.0 for end_s in times)
    outcome = _outcome(pod, worst, deleted=deleted)
    return PodEnd(
        outcome=outcome,
        exit_code=None if worst is None else worst.exit_code,
        time_unix_s=max(times, default=None),
        deleted=deleted and outcome is JobOutcome.CANCELLED,
    )


def _outcome(pod: ApiPod, worst: _Terminated | None, *, deleted: bool) -> JobOutcome:
    status = pod.status
    disruption = next(
        (one.reason for one in status.conditions if (one.type, one.status) == ("DisruptionTarget", "True")),
        None,
    )
    if status.phase == "Succeeded" and disruption is None:
        # A trainer may end well when it is asked to.
        outcome = JobOutcome.CANCELLED if deleted else JobOutcome.COMPLETED
    elif worst is not None and worst.reason == "OOMKilled":
        outcome = JobOutcome.OUT_OF_MEMORY
    elif status.reason == "Evicted":
        # The kubelet evicts for the node's memory, disk, PIDs, or a limit of the pod's own storage.
        outcome = JobOutcome.OUT_OF_MEMORY if "memory" in status.message else JobOutcome.FAILED
    elif status.reason == "DeadlineExceeded":
        outcome = JobOutcome.TIME_LIMIT
    elif disruption is not None:
        outcome = _DISRUPTIONS.get(disruption, JobOutcome.PREEMPTED)
    elif deleted:
        outcome = JobOutcome.CANCELLED
    else:
        outcome = JobOutcome.UNKNOWN if worst is None else JobOutcome.of_exit_code(worst.exit_code)
    return outcome


def _deleted_unix_s(pod: ApiPod) -> float | None:
    """When its deletion was requested: the API gives the time at which its grace period ends."""
    killed_at_s = _unix_s(pod.metadata.deletion_timestamp)
    return None if killed_at_s is None else killed_at_s - pod.metadata.deletion_grace_period_seconds


def _unix_s(text: str | None) -> float | None:
    try:
        return None if text is None else datetime.fromisoformat(text).timestamp()
    except ValueError:
        return None


_PLACE = (
    "batch.kubernetes.io/job-completion-index",
    "training.kubeflow.org/replica-type",
    "training.kubeflow.org/replica-index",
)
"""Labels of a pod's place in its job, which a pod in place of it has too."""


def replaces(pod: PodFacts, other: PodFacts, end: PodEnd | None) -> bool:
    """Whether a pod was created in place of another one of its job, which has this end or was deleted."""
    places = [(one.owner_kind, one.owner_name, *map(one.labels.get, _PLACE)) for one in (pod, other)]
    if places[0] != places[1]:
        return False
    stops = [other.deleted_unix_s, None if end is None else end.time_unix_s]
    stopped_s = min((one for one in stops if one is not None), default=None)
    created_s = pod.created_unix_s
    return created_s is not None and stopped_s is not None and created_s >= stopped_s


def worst_end(ends: Sequence[PodEnd]) -> PodEnd:
    """The end of a job of which these pods were on the node; raises `ValueError` without one."""
    worst = max(ends, key=lambda end: (end.outcome.bad, end.outcome.weight))
    times = [end.time_unix_s for end in ends if end.time_unix_s is not None]
    return replace(worst, time_unix_s=max(times, default=None))

"""Which job a pod is of, and how it ended."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from perfd_collectors.pods.job_of_pod import job_of, job_of_name
from perfd_collectors.pods.pod_facts import ApiPod, PodEnd, PodFacts, facts_of, worst_end

from perfd.model import JobOutcome


def a_pod(status: dict[str, Any] | None = None, **metadata: Any) -> ApiPod:
    document = {"metadata": {"name": "p-0", "uid": "u", **metadata}, "status": status or {}}
    return msgspec.json.decode(msgspec.json.encode(document), type=ApiPod)


def facts(status: dict[str, Any] | None = None, **metadata: Any) -> PodFacts:
    return facts_of(a_pod(status, **metadata))


@pytest.mark.parametrize(
    ("labels", "job"),
    [
        ({"batch.kubernetes.io/job-name": "pretrain"}, "pretrain"),
        ({"job-name": "pretrain"}, "pretrain"),
        (
            {"jobset.sigs.k8s.io/jobset-name": "pretrain", "batch.kubernetes.io/job-name": "pretrain-node-0"},
            "pretrain",
        ),
        ({"training.kubeflow.org/job-name": "pretrain"}, "pretrain"),
        ({"leaderworkerset.sigs.k8s.io/name": "pretrain"}, "pretrain"),
        ({"ray.io/cluster": "pretrain-x7k2p", "ray.io/originated-from-cr-name": "pretrain"}, "pretrain"),
        ({"ray.io/cluster": "pretrain"}, "pretrain"),
        ({"volcano.sh/job-name": "pretrain"}, "pretrain"),
        ({"perfd/job": "mine", "batch.kubernetes.io/job-name": "pretrain"}, "mine"),
    ],
)
def test_operators_name_the_job_by_labels(labels: dict[str, str], job: str) -> None:
    assert job_of(facts(labels=labels)) == job


@pytest.mark.parametrize(
    ("kind", "owner", "job"),
    [("ReplicaSet", "web-6d4cf56db6", "web"), ("StatefulSet", "web", "web"), ("", "", "p-0")],
)
def test_without_labels_the_owner_names_it(kind: str, owner: str, job: str) -> None:
    references = [{"kind": kind, "name": owner, "controller": True}] if kind else []
    assert job_of(facts(ownerReferences=references)) == job


@pytest.mark.parametrize(
    ("pod", "job"),
    [
        ("pretrain-x7k2p", "pretrain"),
        ("pretrain-3-x7k2p", "pretrain"),
        ("pretrain-worker-12", "pretrain"),
        ("pretrain-master-0", "pretrain"),
        ("pretrain-7b", "pretrain-7b"),
        ("x7k2p", "x7k2p"),
    ],
)
def test_without_the_api_server_the_pods_name_has_it(pod: str, job: str) -> None:
    assert job_of_name(pod) == job


@pytest.mark.parametrize(
    ("limits", "gpu"),
    [
        ({"nvidia.com/gpu": "8"}, True),
        ({"nvidia.com/mig-1g.10gb": 1, "cpu": 2}, True),
        ({"cpu": 2.5, "memory": "1Gi"}, False),
        ({}, False),
    ],
)
def test_a_pod_has_a_gpu_by_its_limits_and_names_its_account(limits: dict[str, Any], *, gpu: bool) -> None:
    containers = [{"name": "side"}, {"name": "train", "resources": {"limits": limits}}]
    document = {"metadata": {"name": "p"}, "spec": {"serviceAccountName": "sa", "containers": containers}}
    found = facts_of(msgspec.json.decode(msgspec.json.encode(document), type=ApiPod))
    assert (found.has_gpu, found.service_account) == (gpu, "sa")


def terminated(code: int, reason: str = "Error", at: str = "2026-05-01T10:00:00Z") -> dict[str, Any]:
    state = {"terminated": {"exitCode": code, "reason": reason, "finishedAt": at}}
    return {"name": "train", "state": state}


def disruption(reason: str) -> list[dict[str, str]]:
    return [{"type": "DisruptionTarget", "status": "True", "reason": reason}]


@pytest.mark.parametrize(
    ("status", "outcome"),
    [
        ({"phase": "Succeeded", "containerStatuses": [terminated(0, "Completed")]}, JobOutcome.COMPLETED),
        ({"phase": "Failed", "containerStatuses": [terminated(1)]}, JobOutcome.FAILED),
        ({"phase": "Failed", "containerStatuses": [terminated(139)]}, JobOutcome.SIGNAL),
        ({"phase": "Failed", "containerStatuses": [terminated(137, "OOMKilled")]}, JobOutcome.OUT_OF_MEMORY),
        ({"phase": "Failed", "reason": "DeadlineExceeded"}, JobOutcome.TIME_LIMIT),
        (
            {"phase": "Failed", "reason": "Evicted", "message": "The node was low on resource: memory."},
            JobOutcome.OUT_OF_MEMORY,
        ),
        (
            {"phase": "Failed", "reason": "Evicted", "message": "The node had condition: [DiskPressure]."},
            JobOutcome.FAILED,
        ),
        (
            {
                "phase": "Failed",
                "conditions": disruption("PreemptionByScheduler"),
                "containerStatuses": [terminated(143)],
            },
            JobOutcome.PREEMPTED,
        ),
        (
            {
                "phase": "Succeeded",
                "conditions": disruption("EvictionByEvictionAPI"),
                "containerStatuses": [terminated(0)],
            },
            JobOutcome.PREEMPTED,
        ),
        ({"phase": "Failed", "conditions": disruption("DeletionByPodGC")}, JobOutcome.NODE_FAILURE),
        ({"phase": "Failed"}, JobOutcome.UNKNOWN),
    ],
)
def test_how_a_pod_ended(status: dict[str, Any], outcome: JobOutcome) -> None:
    end = facts(status).end
    assert end is not None
    assert end.outcome is outcome


@pytest.mark.parametrize(("phase", "code"), [("Failed", 143), ("Succeeded", 0)])
@pytest.mark.parametrize(
    ("killed", "cancelled"), [("10:00:28", True), ("10:00:30", True), ("10:05:00", False)]
)
def test_a_pod_that_was_deleted_before_it_ended_was_cancelled(
    phase: str, code: int, killed: str, *, cancelled: bool
) -> None:
    # The API gives the time at which the grace period is over; it ended at 10:00:00.
    status = {"phase": phase, "containerStatuses": [terminated(code)]}
    end = facts(status, deletionTimestamp=f"2026-05-01T{killed}Z", deletionGracePeriodSeconds=30).end
    assert end is not None
    assert (end.exit_code, end.time_unix_s, end.deleted) == (code, 1777629600.0, cancelled)
    assert end.outcome is (JobOutcome.CANCELLED if cancelled or code else JobOutcome.COMPLETED)


@pytest.mark.parametrize("seen", [True, False])
def test_the_kubelets_last_deletion_does_not_hide_when_the_first_was_asked_for(*, seen: bool) -> None:
    # Asked for at 09:59:55, ended at 10:00:00; a second and a half later the kubelet deletes it for good.
    first = a_pod(
        {"phase": "Running"}, deletionTimestamp="2026-05-01T10:00:00Z", deletionGracePeriodSeconds=5
    )
    status = {"phase": "Failed", "containerStatuses": [terminated(137)]}
    last = a_pod(status, deletionTimestamp="2026-05-01T10:00:02Z", deletionGracePeriodSeconds=0)
    end = facts_of(last, facts_of(first) if seen else None).end
    assert end is not None
    assert (end.outcome, end.deleted) == (JobOutcome.CANCELLED if seen else JobOutcome.SIGNAL, seen)


@pytest.mark.parametrize(
    ("version", "kind", "job"),
    [("batch/v1", "Job", "n"), ("batch.volcano.sh/v1alpha1", "Job", ""), ("apps/v1", "ReplicaSet", "")],
)
def test_only_jobs_of_kubernetes_can_be_asked(version: str, kind: str, job: str) -> None:
    owner = {"apiVersion": version, "kind": kind, "name": "n", "controller": True}
    assert facts(ownerReferences=[owner]).batch_job == job


@pytest.mark.parametrize("phase", ["Pending", "Running", "Unknown", ""])
def test_a_pod_that_runs_has_no_end(phase: str) -> None:
    assert facts({"phase": phase, "containerStatuses": [terminated(1)]}).end is None


def test_of_several_pods_the_worst_end_counts() -> None:
    good = PodEnd(outcome=JobOutcome.COMPLETED, exit_code=0, time_unix_s=20.0)
    bad = PodEnd(outcome=JobOutcome.FAILED, exit_code=3, time_unix_s=10.0)
    stopped = PodEnd(outcome=JobOutcome.CANCELLED, exit_code=143, time_unix_s=15.0)
    assert worst_end([good, stopped, bad]) == PodEnd(outcome=JobOutcome.FAILED, exit_code=3, time_unix_s=20.0)

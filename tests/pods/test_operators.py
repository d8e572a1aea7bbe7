"""Pods as operators make them: their job, their queue, and the ranks in their processes.

Labels and variables are those of the operators' sources: pkg/controller.v1/pytorch/envvar.go of Kubeflow's
training operator 1.x, PET_* of its Trainer 2.x, pkg/controller/mpi_job_controller.go of the MPI operator,
jobset_types.go of JobSet, ray-operator/controllers/ray of KubeRay, Volcano's plugins `pytorch` and `env`,
pkg/utils/pod/pod_utils.go of LeaderWorkerSet. No operator runs here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import msgspec
import pytest
from perfd_collectors.pods.job_of_pod import LABELS, job_of, job_of_name, queue_of
from perfd_collectors.pods.pod_facts import ApiPod, PodFacts, facts_of
from perfd_collectors.ranks.cgroup import CgroupIdentity
from perfd_collectors.ranks.environment import RankIdentity, resolve_rank
from perfd_collectors.ranks.placement import RankProcess, placements

from perfd.injection.pod_job_name import job_of_labels

TORCHRUN = {"RANK": "9", "LOCAL_RANK": "1", "WORLD_SIZE": "16", "LOCAL_WORLD_SIZE": "8", "MASTER_ADDR": "m"}
"""The environment that torchrun adds to the pod's for one of its processes."""
MPIRUN = {
    "OMPI_COMM_WORLD_RANK": "9",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_SIZE": "16",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "8",
}


class Made(NamedTuple):
    """A worker's pod of a job called `pretrain`: the second of two, with eight GPUs."""

    owner: tuple[str, str]
    name: str
    labels: Mapping[str, str]
    pod_environment: Mapping[str, str]
    process_environment: Mapping[str, str] = TORCHRUN
    queue: str = ""
    by_name: str = "pretrain"
    """The job derived from the pod's name alone."""


KUBEFLOW = "training.kubeflow.org/"
JOBSET = "jobset.sigs.k8s.io/"
LWS = "leaderworkerset.sigs.k8s.io/"
OPERATORS = {
    "PyTorchJob": Made(
        ("PyTorchJob", "pretrain"),
        "pretrain-worker-0",
        {
            KUBEFLOW + "job-name": "pretrain",
            KUBEFLOW + "operator-name": "pytorchjob-controller",
            KUBEFLOW + "replica-type": "worker",
            KUBEFLOW + "replica-index": "0",
            "kueue.x-k8s.io/queue-name": "team",
        },
        {
            "PYTHONUNBUFFERED": "1",
            "MASTER_ADDR": "pretrain-master-0",
            "MASTER_PORT": "23456",
            "WORLD_SIZE": "2",
            "RANK": "1",
            "PET_NNODES": "2",
            "PET_NPROC_PER_NODE": "8",
            "PET_NODE_RANK": "1",
            "PET_MASTER_ADDR": "pretrain-master-0",
        },
        queue="team",
    ),
    "TrainJob": Made(
        ("Job", "pretrain-node-0"),
        "pretrain-node-0-1-x7k2p",
        {
            JOBSET + "jobset-name": "pretrain",
            JOBSET + "replicatedjob-name": "node",
            JOBSET + "job-index": "0",
            "batch.kubernetes.io/job-name": "pretrain-node-0",
            "batch.kubernetes.io/job-completion-index": "1",
            "job-name": "pretrain-node-0",
        },
        {
            "PET_NNODES": "2",
            "PET_NPROC_PER_NODE": "8",
            "PET_NODE_RANK": "1",
            "PET_MASTER_ADDR": "pretrain-node-0-0.pretrain",
            "PET_MASTER_PORT": "29400",
            "JOB_COMPLETION_INDEX": "1",
        },
        by_name="pretrain-node-0",
    ),
    "JobSet": Made(
        ("Job", "pretrain-workers-0"),
        "pretrain-workers-0-1-x7k2p",
        {
            JOBSET + "jobset-name": "pretrain",
            JOBSET + "replicatedjob-name": "workers",
            JOBSET + "job-index": "0",
            JOBSET + "job-key": "759730a97e4373f3a0ee12805db065e3a4a649a5",
            JOBSET + "restart-attempt": "0",
            "batch.kubernetes.io/job-name": "pretrain-workers-0",
            "batch.kubernetes.io/job-completion-index": "1",
            "kueue.x-k8s.io/local-queue-name": "team",
        },
        {"JOB_COMPLETION_INDEX": "1"},
        queue="team",
        by_name="pretrain-workers-0",
    ),
    "MPIJob": Made(
        ("MPIJob", "pretrain"),
        "pretrain-worker-1",
        {
            KUBEFLOW + "job-name": "pretrain",
            KUBEFLOW + "operator-name": "mpi-operator",
            KUBEFLOW + "job-role": "worker",
            KUBEFLOW + "replica-type": "worker",
            KUBEFLOW + "replica-index": "1",
        },
        {"K_MPI_JOB_ROLE": "worker"},
        MPIRUN,
    ),
    "MPIJob's launcher": Made(
        ("Job", "pretrain-launcher"),
        "pretrain-launcher-x7k2p",
        {
            KUBEFLOW + "job-name": "pretrain",
            KUBEFLOW + "operator-name": "mpi-operator",
            KUBEFLOW + "job-role": "launcher",
            "batch.kubernetes.io/job-name": "pretrain-launcher",
        },
        {"K_MPI_JOB_ROLE": "launcher", "OMPI_MCA_orte_default_hostfile": "/etc/mpi/hostfile"},
        {},
        by_name="pretrain-launcher",
    ),
    "RayJob": Made(
        ("RayCluster", "pretrain-raycluster-rjpgt"),
        "pretrain-raycluster-rjpgt-worker-gpu-9qp9v",
        {
            "ray.io/is-ray-node": "yes",
            "ray.io/cluster": "pretrain-raycluster-rjpgt",
            "ray.io/node-type": "worker",
            "ray.io/group": "gpu",
            "ray.io/identifier": "pretrain-raycluster-rjpgt-worker",
            "app.kubernetes.io/name": "kuberay",
        },
        {"RAY_CLUSTER_NAME": "pretrain-raycluster-rjpgt", "RAY_ADDRESS": "10.0.0.1:6379"},
        # Ray Train sets ranks inside its processes, where /proc does not show them.
        {},
        by_name="pretrain-raycluster-rjpgt-worker-gpu",
    ),
    "RayJob's submitter": Made(
        ("Job", "pretrain"),
        "pretrain-x7k2p",
        {"batch.kubernetes.io/job-name": "pretrain", "job-name": "pretrain"},
        {"RAY_JOB_SUBMISSION_ID": "pretrain-4bcdf"},
        {},
    ),
    "Volcano": Made(
        ("Job", "pretrain"),
        "pretrain-worker-0",
        {
            "volcano.sh/job-name": "pretrain",
            "volcano.sh/job-namespace": "research",
            "volcano.sh/queue-name": "team",
            "volcano.sh/task-spec": "worker",
            "volcano.sh/task-index": "0",
        },
        {
            "MASTER_ADDR": "pretrain-master-0.pretrain",
            "MASTER_PORT": "23456",
            "WORLD_SIZE": "2",
            "RANK": "1",
            "VC_TASK_INDEX": "0",
            "VK_TASK_INDEX": "0",
        },
        queue="team",
    ),
    "LeaderWorkerSet": Made(
        ("StatefulSet", "pretrain-0"),
        "pretrain-0-1",
        {
            LWS + "name": "pretrain",
            LWS + "group-index": "0",
            LWS + "worker-index": "1",
            LWS + "group-key": "689ce1b5b1c1",
            LWS + "template-revision-hash": "5d4f",
        },
        {
            "LWS_LEADER_ADDRESS": "pretrain-0.pretrain.research",
            "LWS_GROUP_SIZE": "2",
            "LWS_WORKER_INDEX": "1",
        },
        by_name="pretrain-0-1",
    ),
}


def facts(made: Made) -> PodFacts:
    kind, owner = made.owner
    document = {
        "metadata": {
            "name": made.name,
            "uid": "u",
            "labels": made.labels,
            "ownerReferences": [{"kind": kind, "name": owner, "controller": True}],
        },
        "status": {},
    }
    return facts_of(msgspec.json.decode(msgspec.json.encode(document), type=ApiPod))


@pytest.mark.parametrize("operator", OPERATORS)
def test_pods_of_an_operator_are_of_the_job_that_the_user_named(operator: str) -> None:
    made = OPERATORS[operator]
    assert job_of(facts(made)) == "pretrain"
    assert job_of_labels(made.labels, LABELS) == "pretrain"
    assert queue_of(facts(made)) == made.queue
    assert job_of_name(made.name) == made.by_name


def _identity(environment: Mapping[str, str]) -> RankIdentity | None:
    return resolve_rank(environment, CgroupIdentity(pod_uid="u"))


@pytest.mark.parametrize("operator", OPERATORS)
def test_ranks_are_those_of_the_processes_not_of_the_pod(operator: str) -> None:
    made = OPERATORS[operator]
    environments = [made.pod_environment, {**made.pod_environment, **made.process_environment}]
    known = [
        RankProcess(pid=pid, ancestors=[1] if pid > 1 else [], identity=identity, gpu=None, holds_gpu=False)
        for pid, environment in enumerate(environments, 1)
        if (identity := _identity(environment)) is not None
    ]
    found = placements(known, lambda _: "pretrain")
    expected = [(9, 1, 16)] if made.process_environment else []
    assert [(one.rank, one.local_rank, one.world_size) for one in found] == expected


@pytest.mark.parametrize(
    "name", ["raycluster-rjpgt", "a-raycluster-complete", "a-raycluster-rjpgta", "a-rjpgt"]
)
def test_a_cluster_that_a_user_named_keeps_its_name(name: str) -> None:
    assert job_of_labels({"ray.io/cluster": name}, LABELS) == name

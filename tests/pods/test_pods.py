"""The collector: folders of logs and what the API server says in, records of jobs out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from perfd_collectors.pods import SPEC, PodsCollector, PodsOptions
from perfd_collectors.pods.api_access import ApiAccess
from perfd_collectors.pods.job_reader import DeletedPod, JobCause, JobReader
from perfd_collectors.pods.namespace_reader import NamespaceFacts, NamespaceKey, NamespaceReader
from perfd_collectors.pods.pod_facts import PodEnd, PodFacts
from perfd_collectors.pods.pod_watch import PodWatch
from pods.node_logs import UIDS, ContainerFolder, pod
from training_log.logs import dump, iteration

from perfd.clock import VirtualClock
from perfd.collector import PodJob, Settings
from perfd.collector_loading import load_collector
from perfd.errors import ConfigError
from perfd.model import (
    Event,
    EventKind,
    JobOrigin,
    JobOutcome,
    LogProgress,
    Record,
    SampleTable,
    TrainingStep,
)
from perfd.testing.collector_contract import check_collector, check_unavailable

NOW_NS = 1_777_629_600 * 10**9  # 2026-05-01 10:00:00 UTC


class KnownApi(PodWatch):
    """What an API server has said."""

    def __init__(self) -> None:
        super().__init__(ApiAccess(host="127.0.0.1", port=1), "node0")
        self.known: dict[str, PodFacts] = {}
        self.more: dict[str, Any] = {}
        """What is the same for all pods, besides their names."""
        self.deleted: set[str] = set()
        self.trouble: str | None = None

    def start(self) -> None:
        """Nothing to watch."""

    def says(
        self, number: int, end: PodEnd | None = None, *, name: str = "pretrain-x7k2p", **labels: str
    ) -> None:
        named = labels or {"batch.kubernetes.io/job-name": "pretrain"}
        self.known[UIDS[number]] = PodFacts(
            namespace="research", name=name, uid=UIDS[number], labels=named, end=end,
            created_unix_s=NOW_NS / 1e9 + 100.0 * number, **self.more,
        )  # fmt: skip

    @property
    def problem(self) -> str | None:
        return self.trouble

    def pods(self) -> Mapping[str, PodFacts]:
        return self.known

    def is_present(self, uid: str) -> bool:
        return uid in self.known and uid not in self.deleted


class KnownNamespaces(NamespaceReader):
    """What an API server has said of namespaces."""

    def __init__(self) -> None:
        super().__init__(ApiAccess(host="127.0.0.1", port=1))
        self.known: dict[str, NamespaceFacts] = {}

    def start(self) -> None:
        """Nothing to ask."""

    def found(self, key: NamespaceKey) -> NamespaceFacts | None:
        return self.known.get(key.namespace)


class KnownJobs(JobReader):
    """What an API server has said of Jobs."""

    def __init__(self) -> None:
        super().__init__(ApiAccess(host="127.0.0.1", port=1))
        self.said: dict[DeletedPod, JobCause] = {}

    def start(self) -> None:
        """Nothing to ask."""

    def found(self, key: DeletedPod) -> JobCause | None:
        return self.said.get(key) if key in self._wanted else None


class Node:
    """A node with pods and the collector that reads them."""

    def __init__(self, root: Path, api: KnownApi | None, cluster: str = "", **options: object) -> None:
        self.logs = root / "pods"
        self.logs.mkdir()
        self.api = api
        self.clock = VirtualClock(NOW_NS)
        self.settings = Settings(node="node0", job="default", clock=self.clock)
        self.options = PodsOptions(directory=str(self.logs), **options)  # type: ignore[arg-type]
        self.namespaces = KnownNamespaces()
        self.without_agent: list[float] = []
        self.jobs = KnownJobs()
        self.collector = PodsCollector(
            self.options, self.settings, api, namespaces=self.namespaces, jobs=self.jobs, cluster=cluster
        )

    def container(self, number: int = 0, name: str = "pretrain-x7k2p", **more: str) -> ContainerFolder:
        return ContainerFolder(
            pod(self.logs, name, more.get("namespace", "research"), number) / more.get("called", "train")
        )

    def collect(self, times: int = 1) -> list[Record]:
        """What is said, besides the number of pods without an agent."""
        found: list[Record] = []
        for _ in range(times):
            for record in self.collector.collect():
                if isinstance(record, SampleTable):
                    self.without_agent += record.columns["pods_without_agent"]
                else:
                    found.append(record)
            self.clock.advance(1.0)
        return found


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    node = Node(tmp_path, KnownApi())
    yield node
    node.collector.close()


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[Node]:
    """A node whose agent may not ask the API server."""
    node = Node(tmp_path, None)
    yield node
    node.collector.close()


def steps(records: Sequence[Record]) -> list[tuple[str, int]]:
    return [(record.job, record.step) for record in records if isinstance(record, TrainingStep)]


def ends(records: Sequence[Record]) -> list[tuple[str, JobOutcome | None, float | None]]:
    return [
        (record.job or "", record.outcome, record.values.get("exit_code"))
        for record in records
        if isinstance(record, Event) and record.kind is EventKind.JOB_ENDED
    ]


def kinds(records: Sequence[Record]) -> list[object]:
    """Steps, and the kinds of events that say of a new process."""
    return [
        TrainingStep if isinstance(one, TrainingStep) else one.kind
        for one in records
        if isinstance(one, TrainingStep) or (isinstance(one, Event) and "new_process" in one.values)
    ]


def done(outcome: JobOutcome = JobOutcome.COMPLETED, code: int = 0, seconds: float = 30.0) -> PodEnd:
    return PodEnd(outcome=outcome, exit_code=code, time_unix_s=NOW_NS / 1e9 + seconds)


def test_the_specification_is_sound_and_installed(tmp_path: Path) -> None:
    assert load_collector("pods") is SPEC
    assert not SPEC.enabled
    directory = tmp_path / "pods"
    directory.mkdir()
    ContainerFolder(pod(directory, "pretrain-x7k2p") / "train").prints(dump() + iteration(10))
    settings = Settings(node="node0", job="default", clock=VirtualClock(NOW_NS))
    records = check_collector(SPEC, settings, options=PodsOptions(directory=str(directory), api=False))
    assert steps(records) == [("research/pretrain", 10)]


def test_without_the_kubelets_folder_it_is_unavailable(tmp_path: Path) -> None:
    settings = Settings(node="node0", job="default", clock=VirtualClock(NOW_NS))
    check_unavailable(SPEC, settings, options=PodsOptions(directory=str(tmp_path / "none")))


def test_a_framework_that_nobody_knows_is_refused(tmp_path: Path) -> None:
    settings = Settings(node="node0", job="default", clock=VirtualClock(NOW_NS))
    with pytest.raises(ConfigError, match=r"collectors\.pods\.options\.framework"):
        SPEC.create(PodsOptions(directory=str(tmp_path), framework="none"), settings)


def test_steps_of_an_unmodified_pod_are_those_of_its_job(node: Node) -> None:
    assert node.api is not None
    container = node.container()
    node.api.says(0)
    container.prints(dump() + iteration(10))
    records = node.collect()
    container.prints(iteration(20))
    records += node.collect()
    assert steps(records) == [("research/pretrain", 10), ("research/pretrain", 20)]
    assert [one for one in records if isinstance(one, JobOrigin)] == [
        JobOrigin(job="research/pretrain", namespace="research")
    ]


def test_a_step_has_the_time_at_which_the_runtime_received_it(node: Node) -> None:
    assert node.api is not None
    node.api.says(0)
    # This loop prints no time; the lines are two seconds apart and old when they are read.
    node.clock.advance(3600.0)
    node.container().prints("step 1 loss 2.5 step_time 0.5\nstep 2 loss 2.4 step_time 0.5\n")
    found = [record for record in node.collect(3) if isinstance(record, TrainingStep)]
    assert [record.time_unix_ns for record in found] == [NOW_NS, NOW_NS + 2 * 10**9]


def test_pods_that_train_nothing_are_no_jobs(node: Node) -> None:
    assert node.api is not None
    node.container().prints("GET / 200\nTraceback (most recent call last):\nRuntimeError: no\n")
    node.api.says(0)
    assert node.collect(3) == []


def test_pods_of_one_job_are_one_job(node: Node) -> None:
    assert node.api is not None
    for number in range(2):
        node.api.says(number)
        node.container(number, f"pretrain-{number}-x7k2p").prints(iteration(10))
    records = node.collect(2)
    assert steps(records) == [("research/pretrain", 10)]
    assert {one.stream for one in records if isinstance(one, LogProgress)} == {
        "pretrain-0-x7k2p/train/stdout",
        "pretrain-1-x7k2p/train/stdout",
    }


def test_jobs_of_one_name_in_two_namespaces_stay_two(alone: Node) -> None:
    alone.container(0).prints(iteration(10))
    alone.container(1, namespace="vision").prints(iteration(20))
    assert sorted(steps(alone.collect(2))) == [("research/pretrain", 10), ("vision/pretrain", 20)]


def test_the_api_server_is_waited_for_before_a_pods_name_is_used(node: Node) -> None:
    assert node.api is not None
    node.api.trouble = "pods is forbidden"
    node.container().prints(iteration(10))
    assert steps(node.collect(9)) == []
    assert steps(node.collect(5)) == [("research/pretrain", 10)]
    node.api.trouble = None
    node.api.says(0, **{"perfd/job": "another"})
    assert {job for job, _ in steps(node.collect(3))} <= {"research/pretrain"}


@pytest.mark.parametrize(
    ("end", "said"),
    [
        (done(), ("research/pretrain", JobOutcome.COMPLETED, 0.0)),
        (done(JobOutcome.FAILED, 3), ("research/pretrain", JobOutcome.FAILED, 3.0)),
        (done(JobOutcome.OUT_OF_MEMORY, 137), ("research/pretrain", JobOutcome.OUT_OF_MEMORY, 137.0)),
    ],
)
def test_the_end_of_its_pods_ends_a_job_after_its_last_line(node: Node, end: PodEnd, said: tuple) -> None:
    assert node.api is not None
    container = node.container()
    node.api.says(0)
    container.prints(iteration(10))
    assert ends(node.collect(2)) == []
    container.prints(iteration(20))
    node.api.says(0, end)
    records = node.collect(3)
    assert ends(records) == [said]
    kinds = [type(record) for record in records if isinstance(record, TrainingStep | Event)]
    assert kinds == [TrainingStep, Event]
    assert node.collect(3) == []


def test_a_job_of_two_pods_ends_with_the_second(node: Node) -> None:
    assert node.api is not None
    for number in range(2):
        node.api.says(number)
        node.container(number, f"pretrain-{number}-x7k2p").prints(iteration(10))
    node.collect(2)
    node.api.says(0, done())
    assert ends(node.collect(3)) == []
    node.api.says(1, done(JobOutcome.FAILED, 1))
    assert ends(node.collect(3)) == [("research/pretrain", JobOutcome.FAILED, 1.0)]


def test_a_pod_that_was_deleted_was_cancelled(node: Node) -> None:
    assert node.api is not None
    node.container().prints(iteration(10))
    node.api.says(0)
    node.collect(2)
    node.api.deleted.add(UIDS[0])
    records = node.collect(3)
    assert ends(records) == [("research/pretrain", JobOutcome.CANCELLED, None)]
    assert [one.values for one in records if isinstance(one, Event)] == [{"deleted": 1.0}]


def deletion(code: int | None = 137) -> PodEnd:
    return PodEnd(outcome=JobOutcome.CANCELLED, exit_code=code, time_unix_s=NOW_NS / 1e9 + 30.0, deleted=True)


@pytest.mark.parametrize("at_the_end", [False, True])
@pytest.mark.parametrize(
    ("cause", "said"),
    [
        (JobOutcome.TIME_LIMIT, (JobOutcome.TIME_LIMIT, 137.0)),
        (JobOutcome.FAILED, (JobOutcome.FAILED, None)),
        (JobOutcome.PREEMPTED, (JobOutcome.PREEMPTED, None)),
        (None, (JobOutcome.CANCELLED, 137.0)),
    ],
)
def test_the_job_of_a_deleted_pod_says_why(
    node: Node, cause: JobOutcome | None, said: tuple[JobOutcome, float | None], *, at_the_end: bool
) -> None:
    assert node.api is not None
    node.container().prints(iteration(10))
    node.api.more["batch_job"] = "pretrain"
    node.api.says(0)
    node.collect(2)
    node.api.more["deleted_unix_s"] = NOW_NS / 1e9
    node.api.says(0)
    first = DeletedPod("research", "pretrain", UIDS[0], ended=False)
    node.jobs.said[first] = JobCause(None if at_the_end else cause)
    assert ends(node.collect(2)) == []
    node.api.says(0, deletion())
    # Nothing is said before the API server answered.
    assert ends(node.collect(2)) == ([] if at_the_end or cause is None else [("research/pretrain", *said)])
    node.jobs.said[first._replace(ended=True)] = JobCause(cause)
    assert ends(node.collect(2)) == ([("research/pretrain", *said)] if at_the_end or cause is None else [])


def test_a_pod_that_no_job_of_kubernetes_controls_needs_no_answer(node: Node) -> None:
    assert node.api is not None
    node.container().prints(iteration(10))
    node.api.says(0)
    node.collect(2)
    node.api.says(0, deletion())
    assert ends(node.collect(2)) == [("research/pretrain", JobOutcome.CANCELLED, 137.0)]


def test_the_pod_that_replaces_one_is_another_process_and_its_end_counts(node: Node) -> None:
    assert node.api is not None
    node.container(0, "pretrain-a2b3c").prints(iteration(10) + iteration(20))
    node.api.says(0, name="pretrain-a2b3c")
    node.collect(2)
    # Kubernetes makes the next pod while the first one is still there.
    node.api.says(0, deletion(), name="pretrain-a2b3c")
    node.api.says(1, name="pretrain-b2c3d")
    node.container(1, "pretrain-b2c3d").prints(iteration(10) + iteration(20))
    records = node.collect(2)
    assert kinds(records) == [EventKind.JOB_STARTED, TrainingStep, TrainingStep]
    node.api.says(1, done(seconds=130.0), name="pretrain-b2c3d")
    assert ends(node.collect(2)) == [("research/pretrain", JobOutcome.COMPLETED, 0.0)]


@pytest.mark.parametrize(
    "label", ["batch.kubernetes.io/job-completion-index", "training.kubeflow.org/replica-index"]
)
def test_a_pod_that_is_made_later_for_another_place_replaces_none(node: Node, label: str) -> None:
    assert node.api is not None
    for number, outcome in ((0, JobOutcome.FAILED), (1, JobOutcome.CANCELLED)):
        name = f"pretrain-{number}-x7k2p"
        node.container(number, name).prints(iteration(10))
        end = done(outcome, 4 * (1 - number), seconds=30.0 + 100.0 * number)
        node.api.says(number, end, name=name, **{"job-name": "pretrain", label: str(number)})
    assert ends(node.collect(3)) == [("research/pretrain", JobOutcome.FAILED, 4.0)]


def test_pods_that_began_together_replace_none(node: Node) -> None:
    assert node.api is not None
    for number, step in ((0, 10), (1, 20)):
        node.container(number, f"pretrain-{number}-x7k2p").prints(iteration(step))
        node.api.says(number, name=f"pretrain-{number}-x7k2p")
    # The second was made before the first ended.
    node.api.says(0, done(JobOutcome.FAILED, 4, seconds=1000.0), name="pretrain-0-x7k2p")
    node.api.says(1, done(seconds=1001.0), name="pretrain-1-x7k2p")
    records = node.collect(3)
    assert ends(records) == [("research/pretrain", JobOutcome.FAILED, 4.0)]


def test_without_the_api_server_a_job_ends_when_its_folder_is_gone(alone: Node) -> None:
    container = alone.container()
    container.prints(iteration(10))
    alone.collect(2)
    container.live.unlink()
    container.folder.rmdir()
    container.folder.parent.rmdir()
    assert ends(alone.collect(3)) == [("research/pretrain", JobOutcome.UNKNOWN, None)]


def test_what_ended_long_before_the_agent_started_is_no_news(node: Node) -> None:
    assert node.api is not None
    node.container().prints(iteration(10))
    node.api.says(0, done(seconds=-3600.0))
    assert node.collect(3) == []


def test_what_ended_while_no_agent_ran_is_reported(node: Node) -> None:
    assert node.api is not None
    node.container().prints(iteration(10))
    node.api.says(0, done(seconds=-60.0))
    records = node.collect(3)
    assert (steps(records), ends(records)) == (
        [("research/pretrain", 10)],
        [("research/pretrain", JobOutcome.COMPLETED, 0.0)],
    )


def test_a_container_that_is_started_again_begins_another_attempt(node: Node) -> None:
    assert node.api is not None
    container = node.container()
    node.api.says(0)
    container.prints(iteration(10) + iteration(20))
    node.collect(2)
    container.restarts()
    container.prints(iteration(10, stamp="2025-05-01 10:10:00"))
    records = node.collect(4)
    assert kinds(records) == [EventKind.RESTARTED, TrainingStep]
    (event,) = [one for one in records if isinstance(one, Event)]
    # The runtime's time of the container's first line.
    assert (event.time_unix_ns, event.values) == (NOW_NS + 4 * 10**9, {"new_process": 1.0})


def test_a_trainer_that_says_that_it_starts_covers_as_many_steps_as_at_first(node: Node) -> None:
    assert node.api is not None
    container = node.container()
    node.api.says(0)
    container.prints(dump() + iteration(10) + iteration(20))
    first = node.collect(2)
    container.restarts()
    container.prints(dump() + iteration(10, stamp="2025-05-01 10:10:00"))
    again = node.collect(4)
    covered = [one.steps_covered for one in [*first, *again] if isinstance(one, TrainingStep)]
    assert covered == [10, 10, 10]


def test_a_loop_without_times_that_is_started_again_repeats_its_lines(node: Node) -> None:
    assert node.api is not None
    lines = "step 1 loss 2.5 step_time 0.5\nstep 2 loss 2.4 step_time 0.5\n"
    container = node.container()
    node.api.says(0)
    container.prints(lines)
    first = node.collect(4)
    container.restarts()
    container.prints(lines)
    again = node.collect(4)
    assert steps(first) == steps(again) == [("research/pretrain", 1), ("research/pretrain", 2)]
    assert kinds(first) == [EventKind.JOB_STARTED, TrainingStep, TrainingStep]
    assert kinds(again) == [EventKind.RESTARTED, TrainingStep, TrainingStep]


def test_a_log_whose_first_lines_may_be_gone_shows_no_start(node: Node) -> None:
    assert node.api is not None
    container = node.container()
    node.api.says(0)
    container.rotates("20260501-100000")
    container.prints(iteration(10))
    assert kinds(node.collect(4)) == [TrainingStep]


def test_a_container_that_trains_nothing_may_start_again(node: Node) -> None:
    assert node.api is not None
    node.container().prints(iteration(10))
    beside = ContainerFolder(next(node.logs.iterdir()) / "shipper")
    beside.prints("shipping")
    node.api.says(0)
    node.collect(2)
    beside.restarts()
    beside.prints("shipping")
    assert not [one for one in node.collect(4) if isinstance(one, Event)]


@pytest.mark.parametrize("how", ["container", "label"])
def test_a_pod_with_an_agent_of_its_own_is_left_to_it(node: Node, how: str) -> None:
    assert node.api is not None
    container = node.container()
    container.prints(iteration(10))
    labels = {"batch.kubernetes.io/job-name": "pretrain"}
    node.api.says(0, **labels | ({"perfd-agent": "sidecar"} if how == "label" else {}))
    if how == "container":
        (container.folder.parent / "perfd").mkdir()
    assert node.collect(3) == []
    assert node.settings.pod_jobs.of(UIDS[0]) == PodJob("research/pretrain", "research", own_agent=True)


@pytest.mark.parametrize("how", ["container", "label"])
def test_an_injected_agent_leaves_the_output_to_the_nodes(node: Node, how: str) -> None:
    assert node.api is not None
    container = node.container()
    container.prints(iteration(10))
    labels = {"batch.kubernetes.io/job-name": "pretrain"}
    node.api.says(0, **labels | ({"perfd-agent": "injected"} if how == "label" else {}))
    if how == "container":
        (container.folder.parent / "perfd-agent").mkdir()
    assert steps(node.collect(3)) == [("research/pretrain", 10)]
    assert node.settings.pod_jobs.of(UIDS[0]) == PodJob("research/pretrain", "research", own_agent=True)


def test_a_pod_whose_injection_failed_is_reported_once(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    assert node.api is not None
    node.container()
    node.api.says(0, **{"perfd/inject": "true"})
    node.collect(3)
    assert [record.levelname for record in caplog.records] == ["WARNING"]


INJECTED = NamespaceFacts(labels={"perfd/inject": "true"})


@pytest.mark.parametrize(
    ("namespace", "label", "gpu", "counted"),
    [
        (INJECTED, None, True, 1.0),
        (INJECTED, None, False, 0.0),
        (INJECTED, "false", True, 0.0),
        (NamespaceFacts(), None, True, 0.0),
        (NamespaceFacts(labels={"perfd/inject": "yes"}), None, True, 0.0),
        (NamespaceFacts(), "true", False, 1.0),
        (None, None, True, 0.0),
    ],
)
def test_pods_that_began_before_injection_are_counted_as_the_policy_would_choose_them(
    node: Node, namespace: NamespaceFacts | None, label: str | None, gpu: bool, counted: float
) -> None:
    assert node.api is not None
    if namespace is not None:
        node.namespaces.known["research"] = namespace
    node.api.more["has_gpu"] = gpu
    node.container()
    node.api.says(0, **{"job-name": "pretrain"} | ({} if label is None else {"perfd/inject": label}))
    node.collect()
    assert node.without_agent == [counted]


def test_each_pod_without_its_agent_is_named_once_and_counted_until_it_ends(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    assert node.api is not None
    node.namespaces.known["research"] = INJECTED
    node.api.more["has_gpu"] = True
    for number in range(2):
        node.container(number, f"pretrain-{number}-x7k2p")
        node.api.says(number, name=f"pretrain-{number}-x7k2p")
    node.collect(3)
    assert [record.__dict__["pod"] for record in caplog.records] == [
        "pretrain-0-x7k2p", "pretrain-1-x7k2p",
    ]  # fmt: skip
    assert {record.__dict__["job"] for record in caplog.records} == {"research/pretrain"}
    node.api.says(0, done())
    node.collect()
    assert node.without_agent == [2.0, 2.0, 2.0, 1.0]


def test_pods_without_gpus_are_counted_where_all_are_injected(tmp_path: Path) -> None:
    api = KnownApi()
    node = Node(tmp_path, api, injected_gpu_pods_only=False)
    node.namespaces.known["research"] = INJECTED
    node.container()
    api.says(0)
    node.collect()
    node.collector.close()
    assert node.without_agent == [1.0]


def whose(node: Node, **labels: str) -> tuple[str, str]:
    """User and queue of the job."""
    assert node.api is not None
    node.container().prints(iteration(10))
    node.api.says(0, **{"job-name": "pretrain"} | labels)
    (origin,) = [record for record in node.collect(2) if isinstance(record, JobOrigin)]
    return origin.user, origin.partition


@pytest.mark.parametrize(
    ("labels", "namespace", "account", "user"),
    [
        ({"perfd/owner": "ana"}, NamespaceFacts(labels={"perfd/owner": "team"}), "sa", "ana"),
        ({}, NamespaceFacts(labels={"perfd/owner": "team"}), "sa", "team"),
        ({}, NamespaceFacts(annotations={"owner": "ana@example.org"}), "sa", "ana@example.org"),
        ({}, NamespaceFacts(annotations={"owner": "x" * 100_000}), "sa", "x" * 128),
        ({}, NamespaceFacts(), "pretrainer", "pretrainer"),
        ({}, NamespaceFacts(), "default", ""),
        ({}, None, "pretrainer", ""),
    ],
)
def test_the_owner_is_that_of_pod_or_namespace_else_its_service_account(
    node: Node, labels: dict[str, str], namespace: NamespaceFacts | None, account: str, user: str
) -> None:
    assert node.api is not None
    node.api.more["service_account"] = account
    if namespace is not None:
        node.namespaces.known["research"] = namespace
    assert whose(node, **labels)[0] == user


@pytest.mark.parametrize(
    "label", ["kueue.x-k8s.io/queue-name", "kueue.x-k8s.io/local-queue-name", "volcano.sh/queue-name"]
)
def test_the_queue_of_kueue_or_volcano_is_the_partition(node: Node, label: str) -> None:
    assert whose(node, **{label: "team-queue"})[1] == "team-queue"


def test_jobs_have_the_name_of_their_cluster(tmp_path: Path) -> None:
    node = Node(tmp_path, None, cluster="east")
    node.container().prints(iteration(10))
    (origin,) = [record for record in node.collect(2) if isinstance(record, JobOrigin)]
    node.collector.close()
    assert origin == JobOrigin(job="research/pretrain", namespace="research", cluster="east")
    assert node.settings.pod_jobs.of(UIDS[0]) == PodJob("research/pretrain", "research", False, "east")


def test_ranks_can_ask_for_the_job_of_a_pod(alone: Node) -> None:
    alone.container()
    alone.collect()
    assert alone.settings.pod_jobs.of(UIDS[0]) == PodJob("research/pretrain", "research", own_agent=False)
    assert alone.settings.pod_jobs.of(UIDS[1]) is None
    assert alone.settings.pod_jobs.of(None) is None


def test_namespaces_can_be_chosen_and_left_out(tmp_path: Path) -> None:
    node = Node(tmp_path, None, namespaces=("team-*",), exclude_namespaces=("team-b",))
    for number, namespace in enumerate(["team-a", "team-b", "research"]):
        node.container(number, namespace=namespace).prints(iteration(10))
    found = node.collect(2)
    node.collector.close()
    assert steps(found) == [("team-a/pretrain", 10)]


def test_a_chatty_pod_does_not_silence_another(tmp_path: Path) -> None:
    node = Node(tmp_path, None, max_read_bytes=4096)
    chatty = node.container(0, "chatty-x7k2p")
    chatty.prints("nothing to see here\n" * 4000)
    node.container(1).prints(iteration(10))
    found = node.collect(4)
    node.collector.close()
    assert steps(found) == [("research/pretrain", 10)]

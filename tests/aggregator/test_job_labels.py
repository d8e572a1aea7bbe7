"""The labels of a job: on each of its series, on its GPUs, and on what rules join."""

import re
from pathlib import Path

import pytest
from exporters.support import until

from perfd.model import (
    JOB_LABELS,
    GpuAllocation,
    GpuAllocations,
    GpuInfo,
    JobOrigin,
    RankPlacement,
    SampleTable,
    Scope,
    job_labels,
)
from tests.aggregator.support import START_S, aggregator, gpus, place, step, values
from tests.support.fake_agent import FakeAgent

ROOT = Path(__file__).parents[2]
EXPRESSIONS = [ROOT / "deploy/prometheus/fleet.yaml", *sorted((ROOT / "rules").glob("*.yaml"))]


@pytest.fixture
def running():
    with aggregator(http_listen=None) as found:
        yield found


def labels_of(page, metric):
    """The labels of each series of a metric."""
    names = [name for name in values(page) if name.startswith(metric + "{")]
    return [dict(re.findall(r'(\w+)="([^"]*)"', name)) for name in names]


def test_two_jobs_of_one_name_and_their_gpus_have_their_own_labels(running):
    first = JobOrigin(job="llm", cluster="a", namespace="team-a", owner="uid:1")
    second = JobOrigin(job="llm", cluster="a", namespace="team-b", account="physics", partition="gpu")
    for number, origin in enumerate((first, second)):
        with FakeAgent(running.grpc_address, agent_id=f"a{number}", node=f"n{number}") as agent:
            agent.hello()
            agent.send(origin, RankPlacement(job="llm", rank=0, gpu=0), step(1), gpus(START_S, power_w=100.0))
    running.tick()
    one = {"cluster": "a", "namespace": "team-a", "perfd_job": "llm", "user": "uid:1"}
    other = {
        "cluster": "a",
        "namespace": "team-b",
        "perfd_job": "a/team-b/llm",
        "account": "physics",
        "partition": "gpu",
    }
    page = running.page()
    assert labels_of(page, "perfd_step") == [one, other]
    assert labels_of(page, "perfd_gpu_power_watts") == [
        {**one, "node": "n0", "instance": "n0", "gpu": "0", "rank": "0"},
        {**other, "node": "n1", "instance": "n1", "gpu": "0", "rank": "0"},
    ]


def test_what_is_known_of_a_job_later_is_on_all_its_series_from_then_on(running):
    readings = SampleTable(
        scope=Scope.RANK,
        times_unix_ns=[int(START_S * 1e9)],
        entities=["llm/0"],
        columns={"nccl_busy_s": [1.0]},
    )
    with FakeAgent(running.grpc_address) as agent:
        agent.hello()
        agent.send(RankPlacement(job="llm", rank=0, gpu=0), step(1), gpus(START_S, power_w=1.0), readings)
        running.tick()
        assert labels_of(running.page(), "perfd_step") == [{"perfd_job": "llm"}]
        agent.send(JobOrigin(job="llm", namespace="team-a", user="ada", title="pretrain"))
        running.tick()
        page = running.page()
    wanted = {"perfd_job": "llm", "namespace": "team-a", "user": "ada"}
    for metric in ("perfd_step", "perfd_gpu_power_watts", "perfd_rank_nccl_busy_seconds_total"):
        (found,) = labels_of(page, metric)
        assert found.items() >= wanted.items(), metric
    assert labels_of(page, "perfd_job_title_info") == [{**wanted, "title": "pretrain"}]


def test_a_task_of_an_array_has_its_index_and_a_node_its_group_of_a_heterogeneous_job(running):
    for node, group in (("n0", 0), ("n1", 1)):
        origin = JobOrigin(
            job="18", owner="uid:1", title="pretrain", array_job="17", array_task="3", het_group=group
        )
        with FakeAgent(running.grpc_address, agent_id=f"a{node}", node=node) as agent:
            agent.hello()
            agent.send(origin, RankPlacement(job="18", rank=group, gpu=0), step(1))
            running.tick()
    page = running.page()
    assert labels_of(page, "perfd_job_title_info") == [
        {"perfd_job": "18", "user": "uid:1", "title": "pretrain", "array_job": "17", "array_task": "3"}
    ]
    groups = [line for line in page.decode().splitlines() if line.startswith("perfd_job_node_het_group{")]
    assert [(line.split('node="')[1][:2], line.split()[-1]) for line in groups] == [
        ("n0", "0.0"),
        ("n1", "1.0"),
    ]
    (seen,) = running.overview("18")
    assert (seen["title"], seen["array"]) == ("pretrain", ["17", "3"])
    assert seen["het_groups"] == {"n0": 0, "n1": 1}


def test_the_ranks_of_a_job_on_cpus_are_those_that_its_launcher_set(running):
    with FakeAgent(running.grpc_address) as agent:
        agent.hello()
        agent.send(RankPlacement(job="llm", rank=0, world_size=2), step(1))
        running.tick()
    page = running.page().decode()
    assert [line for line in page.splitlines() if line.startswith("perfd_job_ranks{")] == [
        'perfd_job_ranks{perfd_job="llm"} 2.0'
    ]


def test_long_labels_are_cut_and_cost_no_series(running):
    long = "x" * 10_000
    origin = JobOrigin(
        job="llm",
        cluster=long,
        namespace=long,
        owner=long,
        user=long,
        account=long,
        partition=long,
        title=long,
    )
    with FakeAgent(running.grpc_address) as agent:
        agent.hello()
        agent.send(origin, step(1))
        running.tick()
        (found,) = labels_of(running.page(), "perfd_step")
        (title,) = labels_of(running.page(), "perfd_job_title_info")
    assert found.pop("perfd_job") == "llm"
    assert {name: len(text) for name, text in found.items()} == dict.fromkeys(
        ("cluster", "namespace", "user", "account", "partition"), 128
    )
    assert len(title["title"]) == 128


def kubelet(*devices):
    return GpuAllocations(
        devices=[
            GpuAllocation(uuid=uuid, namespace="team-a", pod=pod, container="main") for uuid, pod in devices
        ]
    )


def on_gpus(*entities):
    """Power of GPUs and MIG slices."""
    return SampleTable(
        scope=Scope.GPU,
        times_unix_ns=[int(START_S * 1e9)] * len(entities),
        entities=list(entities),
        columns={"power_w": [100.0] * len(entities)},
    )


INFOS = (
    GpuInfo(index=0, name="H200", uuid="GPU-0"),
    GpuInfo(index=1, name="H200", uuid="GPU-1"),
    GpuInfo(index=1, name="H200", uuid="MIG-5", mig=True, gpu_instance=5),
)


def pods_of(page):
    """By GPU: the job's name, its rank, namespace, pod and container."""
    keys = ("perfd_job", "rank", "namespace", "pod", "container")
    return {
        found["gpu"]: tuple(found.get(key) for key in keys)
        for found in labels_of(page, "perfd_gpu_power_watts")
    }


def test_a_gpu_of_several_jobs_has_one_series_that_lists_them(running):
    with FakeAgent(running.grpc_address) as agent:
        agent.hello()
        agent.send(on_gpus("0", "1"), place(0, 0), place(1, 1), place(0, 0, job="other"))
        running.tick()
        labels = labels_of(running.page(), "perfd_gpu_power_watts")
        assert [(found.get("perfd_job"), found.get("rank"), found.get("shared_by")) for found in labels] == [
            (None, None, "llm, other"),
            ("llm", "1", None),
        ]


def test_gpus_and_slices_carry_the_container_that_the_kubelet_gave_them_to(running):
    with FakeAgent(running.grpc_address) as agent:
        agent.hello()
        agent.send(*INFOS, on_gpus("0", "1", "1/5"), kubelet(("GPU-0", "a"), ("MIG-5", "b")))
        running.tick()
        assert pods_of(running.page()) == {
            "0": (None, None, "team-a", "a", "main"),
            "1": (None, None, None, None, None),
            "1/5": (None, None, "team-a", "b", "main"),
        }
        agent.send(kubelet(("GPU-1", "c")))
        running.tick()
        assert {gpu: found[3] for gpu, found in pods_of(running.page()).items()} == {
            "0": None, "1": "c", "1/5": None,
        }  # fmt: skip


def test_a_gpu_of_a_job_has_the_namespace_of_the_job_and_a_slice_is_of_its_pods_job(running):
    placed = [
        RankPlacement(job="llm", rank=0, gpu=0, pod_name="a"),
        RankPlacement(job="mig", rank=3, pod_name="b"),
    ]
    with FakeAgent(running.grpc_address) as agent:
        agent.hello()
        agent.send(*INFOS, on_gpus("0", "1", "1/5"), kubelet(("GPU-0", "a"), ("MIG-5", "b")))
        agent.send(JobOrigin(job="mig", namespace="team-m"), *placed, step(1), step(1, job="mig"))
        running.tick()
        assert pods_of(running.page()) == {
            "0": ("llm", "0", None, "a", "main"),
            "1": (None, None, None, None, None),
            "1/5": ("mig", "3", "team-m", "b", "main"),
        }


def test_a_rank_says_its_pod_where_no_kubelet_does(running):
    with FakeAgent(running.grpc_address) as agent:
        agent.hello()
        agent.send(on_gpus("0"), RankPlacement(job="llm", rank=0, gpu=0, pod_name="a"), step(1))
        running.tick()
        assert pods_of(running.page()) == {"0": ("llm", "0", None, "a", None)}


def test_a_pod_of_another_name_takes_the_place_of_the_one_before_on_the_series_of_its_gpu(running):
    with FakeAgent(running.grpc_address) as agent:
        agent.hello()
        for pod in ("worker-0-x7k2p", "worker-0-q9d4m"):
            agent.send(on_gpus("0"), RankPlacement(job="llm", rank=0, gpu=0, pod_name=pod), step(1))
            running.tick()
            assert pods_of(running.page()) == {"0": ("llm", "0", None, pod, None)}


def test_a_node_that_is_replaced_under_its_old_name_has_the_gpus_of_the_new_one(running):
    with FakeAgent(running.grpc_address, agent_id="old", node="n0") as agent:
        agent.hello()
        ranks = [RankPlacement(job="llm", rank=rank, gpu=rank) for rank in (0, 1)]
        agent.send(*INFOS[:2], on_gpus("0", "1"), *ranks, step(1))
        running.tick()
    until(lambda: not any(one["connected"] for one in running.agents()))
    with FakeAgent(running.grpc_address, agent_id="new", node="n0") as agent:
        agent.hello()
        agent.send(
            GpuInfo(index=0, name="B200", uuid="GPU-9"),
            kubelet(("GPU-9", "second")),
            on_gpus("0"),
            RankPlacement(job="other", rank=0, gpu=0, world_size=1),
            step(1, job="other"),
        )
        running.tick()
        page = running.page()
        (seen,) = [one for one in running.agents() if one["connected"]]
    assert seen["node"] == "n0"
    assert pods_of(page)["0"] == ("other", "0", None, "second", "main")
    assert {one["node"] for one in labels_of(page, "perfd_agent_up")} == {"n0"}


def test_a_name_that_is_too_long_for_a_label_is_left_out_and_counted(running):
    with FakeAgent(running.grpc_address) as agent:
        agent.hello()
        agent.send(*INFOS, on_gpus("0", "1"), kubelet(("GPU-0", "x" * 10_000), ("GPU-1", "b")))
        running.tick()
        assert [found[3] for found in pods_of(running.page()).values()] == [None, "b"]
        assert values(running.page())['perfd_rejected_total{bound="name_chars"}'] == 1


def test_a_shared_gpu_has_the_namespace_alone_and_is_not_said_to_be_rejected(running):
    shared = GpuAllocation(uuid="GPU-0", namespace="team-a", pod="", container="")
    with FakeAgent(running.grpc_address) as agent:
        agent.hello()
        agent.send(*INFOS, on_gpus("0"), GpuAllocations(devices=[shared, shared]))
        running.tick()
        assert pods_of(running.page()) == {"0": (None, None, "team-a", None, None)}
        assert values(running.page()).get('perfd_rejected_total{bound="name_chars"}', 0) == 0


def test_a_device_without_a_uuid_is_not_that_of_gpus_without_one(running):
    with FakeAgent(running.grpc_address) as agent:
        agent.hello()
        agent.send(GpuInfo(index=0, name="H200"), on_gpus("0"), kubelet(("", "a")))
        running.tick()
        assert pods_of(running.page()) == {"0": (None,) * 5}


def test_a_job_of_which_nothing_is_known_has_its_name_alone():
    assert job_labels("llm") == job_labels("llm", JobOrigin(job="llm")) == {"perfd_job": "llm"}


@pytest.mark.parametrize("path", EXPRESSIONS, ids=lambda path: path.stem)
def test_rules_never_join_by_a_part_of_what_identifies_a_job(path):
    # A cluster has one group of aggregators, whatever its jobs.
    text = "".join(
        x for x in path.read_text().splitlines(True) if not re.search("perfd_(partition|group)_", x)
    )
    for labels in re.findall(r"\b(?:on|by|ignoring|without) \(([^)]*)\)", text):
        named = {label.strip() for label in labels.split(",")}
        assert "job" not in named
        if named & set(JOB_LABELS):
            assert named >= set(JOB_LABELS)

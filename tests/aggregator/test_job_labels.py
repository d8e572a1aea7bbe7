"""The labels of a job: on each of its series, on its GPUs, and on what rules join."""

import re
from pathlib import Path

import pytest

from perfd.model import JOB_LABELS, JobOrigin, RankPlacement, SampleTable, Scope, job_labels
from tests.aggregator.support import START_S, aggregator, gpus, step, values
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


def test_a_job_of_which_nothing_is_known_has_its_name_alone():
    assert job_labels("llm") == job_labels("llm", JobOrigin(job="llm")) == {"perfd_job": "llm"}


@pytest.mark.parametrize("path", EXPRESSIONS, ids=lambda path: path.stem)
def test_rules_never_join_by_a_part_of_what_identifies_a_job(path):
    for labels in re.findall(r"\b(?:on|by|ignoring|without) \(([^)]*)\)", path.read_text()):
        named = {label.strip() for label in labels.split(",")}
        assert "job" not in named
        if named & set(JOB_LABELS):
            assert named >= set(JOB_LABELS)

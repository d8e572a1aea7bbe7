"""The partitions to which a node's batches are published."""

from __future__ import annotations

from perfd.agent.uplink.nats_publisher import KEPT_FOR_S, PartitionRoutes
from perfd.model import Batch, RankPlacement, TrainingStep
from perfd.wire.convert import encode_message
from perfd.wire.encoded_messages import jobs_of
from perfd.wire.subjects import from_partition, lease_bucket, node_of, partition_of, to_partition

COUNT = 1 << 20
"""Enough that no two names in a test share one."""


def of(job: str) -> int:
    return partition_of(job, COUNT)


def test_a_node_without_a_job_has_the_partition_of_its_own_name() -> None:
    routes = PartitionRoutes(COUNT, "n0")
    assert routes.current == {of("n0")}
    assert routes.take((), 0.0) == set()
    assert routes.current == {of("n0")}


def test_batches_go_to_the_partitions_of_all_jobs_of_the_last_minute() -> None:
    routes = PartitionRoutes(COUNT, "n0")
    assert routes.take(["a"], 0.0) == {of("n0")}
    assert routes.take(["b"], 30.0) == set()
    assert routes.current == {of("a"), of("b")}
    assert routes.take((), KEPT_FOR_S) == set()
    assert routes.take((), KEPT_FOR_S + 0.1) == {of("a")}
    assert routes.current == {of("b")}
    assert routes.take((), 30.1 + KEPT_FOR_S) == {of("b")}
    assert routes.current == {of("n0")}


def test_jobs_are_read_from_the_records_of_a_batch() -> None:
    records = [TrainingStep(job="a", step=1), RankPlacement(job="b", rank=0, gpu=0)]
    assert jobs_of(encode_message(Batch(sequence=1, sent_unix_ns=1, records=records))) == {"a", "b"}
    assert jobs_of(encode_message(Batch(sequence=1, sent_unix_ns=1, records=[]))) == set()


def test_the_partition_of_a_job_never_changes() -> None:
    assert [partition_of(job, 8) for job in ("", "a", "llama-70b", "größe")] == [4, 2, 2, 7]


def test_a_subject_of_a_partition_is_that_of_no_job() -> None:
    subject = to_partition("main", 3, 8, "node1.example")
    assert subject == "perfd.from.main.3/8.node1%2Eexample"
    assert node_of(subject) == "node1.example"
    assert from_partition("main", 3, 8) == "perfd.from.main.3/8.*"


def test_each_cluster_has_a_bucket_whose_name_servers_take() -> None:
    names = [lease_bucket(name) for name in ("main", "xray", "a.b", "größe", "x612e62")]
    assert names[:2] == ["perfd-main", "perfd-x78726179"]
    assert len(set(names)) == len(names)
    assert all(set(name) <= set("perfd-abcdefghijklmnopqrstuvwxyz0123456789") for name in names)

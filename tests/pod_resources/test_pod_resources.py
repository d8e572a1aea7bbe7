"""Which container has which GPU, from a kubelet on a unix socket."""

from __future__ import annotations

import math
import socket as sockets
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st
from perfd_collectors.pod_resources import SPEC, PodResourcesCollector, PodResourcesOptions
from perfd_collectors.pod_resources.gpu_devices import gpu_allocations
from perfd_collectors.pod_resources.pod_resources_pb2 import ListPodResourcesResponse
from pod_resources.kubelet import (
    SLICE,
    UUIDS,
    Kubelet,
    container,
    devices,
    listed,
    pod,
    training_pod,
)

from perfd.clock import VirtualClock
from perfd.collector import Settings
from perfd.collector_loading import load_collector
from perfd.errors import PerfdError, Unavailable
from perfd.model import GpuAllocation, GpuAllocations, Record, SampleTable
from perfd.testing.collector_contract import check_collector, check_unavailable


@pytest.fixture
def socket() -> Iterator[Path]:
    # The path of a unix socket has 107 characters at most, of which pytest's folders take too many.
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder, "kubelet.sock")


@pytest.fixture
def settings() -> Settings:
    return Settings(node="node0", job="default", clock=VirtualClock(1_777_629_600 * 10**9))


@pytest.fixture
def kubelet(socket: Path) -> Iterator[Kubelet]:
    with Kubelet(socket) as kubelet:
        yield kubelet


@pytest.fixture
def collector(kubelet: Kubelet, socket: Path, settings: Settings) -> Iterator[PodResourcesCollector]:
    collector = SPEC.create(PodResourcesOptions(socket=str(socket)), settings)
    yield collector
    collector.close()


def given_to(records: Sequence[Record]) -> list[tuple[str, str, str, str]] | None:
    """UUID, namespace, pod and container; None when nothing was said."""
    found = [record for record in records if isinstance(record, GpuAllocations)]
    assert len(found) <= 1
    return [(one.uuid, one.namespace, one.pod, one.container) for one in found[0].devices] if found else None


def counts(records: Sequence[Record]) -> tuple[float, float]:
    """How many devices are allocated and allocatable."""
    (table,) = [record for record in records if isinstance(record, SampleTable)]
    return table.columns["allocated_gpu_devices"][0], table.columns["allocatable_gpu_devices"][0]


def test_the_specification_is_sound_and_installed(kubelet: Kubelet, socket: Path, settings: Settings) -> None:
    kubelet.pods = listed(training_pod("pretrain-0", UUIDS[0]))
    assert load_collector("pod_resources") is SPEC
    assert not SPEC.enabled
    check_collector(SPEC, settings, options=PodResourcesOptions(socket=str(socket)))


def test_gpus_and_slices_have_the_container_that_the_kubelet_gave_them_to(
    kubelet: Kubelet, collector: PodResourcesCollector
) -> None:
    kubelet.pods = listed(
        training_pod("pretrain-0", UUIDS[1], UUIDS[0]),
        pod("web", container("nginx")),
        training_pod("notebook", SLICE, namespace="team-b", resource="nvidia.com/mig-1g.10gb"),
    )
    kubelet.allocatable = [devices("nvidia.com/gpu", uuid) for uuid in UUIDS[:3]]
    records = collector.collect()
    assert given_to(records) == [
        (UUIDS[0], "research", "pretrain-0", "train"),
        (UUIDS[1], "research", "pretrain-0", "train"),
        (SLICE, "team-b", "notebook", "train"),
    ]
    assert counts(records) == (3.0, 3.0)


def test_devices_that_are_no_gpus_are_left_out(kubelet: Kubelet, collector: PodResourcesCollector) -> None:
    nic = devices("nvidia.com/hostdev", "0000:08:00.0")
    fpga = devices("vendor.example/fpga", "GPU", "GPU-", "mlx5_0", "nvidia0", "")
    kubelet.pods = listed(pod("pretrain-0", container("train", nic, fpga, devices("x/own-name", UUIDS[0]))))
    kubelet.allocatable = [nic, fpga]
    records = collector.collect()
    assert given_to(records) == [(UUIDS[0], "research", "pretrain-0", "train")]
    assert counts(records) == (1.0, 0.0)


def test_of_a_shared_gpu_only_what_all_its_containers_share_is_said(
    kubelet: Kubelet, collector: PodResourcesCollector
) -> None:
    replicas = "nvidia.com/gpu.shared"
    kubelet.pods = listed(
        training_pod("a", f"{UUIDS[0]}::0", resource=replicas),
        training_pod("b", f"{UUIDS[0]}::1", resource=replicas),
        training_pod("c", f"{UUIDS[1]}::0", resource=replicas),
        training_pod("c", f"{UUIDS[1]}::1", resource=replicas, namespace="team-b"),
        pod("d", container("one", devices(replicas, f"{UUIDS[2]}::0", f"{UUIDS[3]}::0")),
            container("two", devices(replicas, f"{UUIDS[2]}::1"))),
    )  # fmt: skip
    records = collector.collect()
    assert given_to(records) == [
        (UUIDS[0], "research", "", ""),
        (UUIDS[1], "", "", ""),
        (UUIDS[2], "research", "d", ""),
        (UUIDS[3], "research", "d", "one"),
    ]
    assert counts(records)[0] == 4.0


def test_only_changes_are_reported_and_repeated_each_minute(
    kubelet: Kubelet, collector: PodResourcesCollector, settings: Settings
) -> None:
    clock = settings.clock
    assert isinstance(clock, VirtualClock)
    said = []
    for pods in ((), (), ("a",), ("a",), ()):
        kubelet.pods = listed(*(training_pod(name, UUIDS[0]) for name in pods))
        said.append(given_to(collector.collect()))
        clock.advance(5.0)
    assert said == [[], None, [(UUIDS[0], "research", "a", "train")], None, []]
    clock.advance(60.0)
    assert given_to(collector.collect()) == []


def test_names_of_10_kb_and_512_pods_are_passed_on_for_the_aggregator_to_bound(
    kubelet: Kubelet, socket: Path, settings: Settings
) -> None:
    long = "x" * 10_000
    kubelet.pods = listed(
        pod(long, container(long, devices(long, UUIDS[0], "GPU-" + long)), namespace=long),
        *(pod(f"p{number}", container("train", devices("a/b", long))) for number in range(512)),
    )
    options = PodResourcesOptions(socket=str(socket))
    records = check_collector(SPEC, settings, options=options, collects=1)
    assert given_to(records) == [(UUIDS[0], long, long, long)]


def test_a_kubelet_without_the_second_question_leaves_its_number_out(
    kubelet: Kubelet, collector: PodResourcesCollector
) -> None:
    kubelet.allocatable = None
    allocated, allocatable = counts(collector.collect())
    assert (allocated, math.isnan(allocatable)) == (0.0, True)


def test_without_a_socket_it_is_unavailable(tmp_path: Path, settings: Settings) -> None:
    (tmp_path / "file").touch()
    for name in ("none", "file"):
        check_unavailable(SPEC, settings, options=PodResourcesOptions(socket=str(tmp_path / name)))


def test_a_socket_at_which_nobody_listens_is_unavailable(socket: Path, settings: Settings) -> None:
    with sockets.socket(sockets.AF_UNIX) as left_over:
        left_over.bind(str(socket))
    collector = SPEC.create(PodResourcesOptions(socket=str(socket)), settings)
    with pytest.raises(Unavailable, match="does not answer"):
        collector.collect()
    collector.close()


def test_after_a_restart_of_the_kubelet_it_is_asked_again(socket: Path, settings: Settings) -> None:
    with Kubelet(socket) as first:
        first.pods = listed(training_pod("a", UUIDS[0]))
        collector = SPEC.create(PodResourcesOptions(socket=str(socket)), settings)
        assert given_to(collector.collect()) == [(UUIDS[0], "research", "a", "train")]
    with pytest.raises(Unavailable):
        collector.collect()
    collector.close()
    # gRPC removes the first one's socket at any time after its end, by its path.
    socket = socket.with_name("again.sock")
    with Kubelet(socket) as second:
        second.pods = listed(training_pod("b", UUIDS[0]))
        collector = SPEC.create(PodResourcesOptions(socket=str(socket)), settings)
        assert given_to(collector.collect()) == [(UUIDS[0], "research", "b", "train")]
        collector.close()


@pytest.mark.parametrize("status", [grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.INTERNAL])
def test_a_refusal_costs_one_look(
    kubelet: Kubelet, collector: PodResourcesCollector, status: grpc.StatusCode
) -> None:
    kubelet.status = status
    with pytest.raises(PerfdError, match="said the stand-in") as refused:
        collector.collect()
    assert not isinstance(refused.value, Unavailable)
    kubelet.status = None
    assert given_to(collector.collect()) == []


def test_a_kubelet_without_this_api_is_unavailable(
    kubelet: Kubelet, collector: PodResourcesCollector
) -> None:
    kubelet.pods = None
    with pytest.raises(Unavailable, match="unknown service"):
        collector.collect()


@pytest.mark.parametrize("answer", [b"\xff", b"\x0a\x7f", b"\x0a\x02\x0a\xff", b"not protobuf"])
def test_an_answer_that_is_no_message_is_a_failure(
    kubelet: Kubelet, collector: PodResourcesCollector, answer: bytes
) -> None:
    kubelet.pods = answer
    with pytest.raises(PerfdError):
        collector.collect()


def test_gpus_by_dynamic_resource_allocation_are_said_to_be_unknown_once(
    kubelet: Kubelet, collector: PodResourcesCollector, caplog: pytest.LogCaptureFixture
) -> None:
    kubelet.pods = listed(
        pod("a", container("train", claims=[("gpu.nvidia.com", "gpu-0"), ("net.example", "eth1")]))
    )
    records = [*collector.collect(), *collector.collect()]
    assert given_to(records) == []
    assert [record.__dict__["devices"] for record in caplog.records] == [1]


@given(st.lists(st.lists(st.one_of(st.text(), st.sampled_from(UUIDS)), max_size=4), max_size=4))
def test_each_gpu_is_said_once_whatever_the_ids_are(ids: list[list[str]]) -> None:
    answer = ListPodResourcesResponse.FromString(
        listed(*(training_pod(f"p{number}", *those) for number, those in enumerate(ids)))
    )
    found = gpu_allocations(answer)
    assert len({one.uuid for one in found}) == len(found)
    assert {one.uuid for one in found} >= {one for those in ids for one in those if one in UUIDS}
    assert all(isinstance(one, GpuAllocation) and one.uuid for one in found)

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from perfd_collectors.host import SPEC, HostCollector, HostOptions, procfs
from perfd_collectors.host.columns import COLUMNS
from perfd_collectors.host.infiniband import parse_rate

from perfd.clock import VirtualClock
from perfd.collector import Settings
from perfd.errors import ConfigError
from perfd.model import Record, SampleTable, Scope
from perfd.testing.collector_contract import check_collector, check_unavailable
from tests.support.fake_node import FakeNode, pressure

NODES = Path(__file__).parent.parent / "fixtures" / "nodes"
NOW_NS = 1_700_000_000 * 10**9


def settings(root: Path) -> Settings:
    return Settings(node="node0", job="job", clock=VirtualClock(NOW_NS), proc=root / "proc", sys=root / "sys")


def values(records: Sequence[Record], scope: Scope) -> dict[str, dict[str, float]]:
    """The newest value of each entity and column, without what is absent."""
    found: dict[str, dict[str, float]] = {}
    for table in records:
        if isinstance(table, SampleTable) and table.scope is scope:
            for name, column in table.columns.items():
                for entity, value in zip(table.entities, column, strict=True):
                    if not math.isnan(value):
                        found.setdefault(entity, {})[name] = value
    return found


def collected(root: Path, options: HostOptions | None = None) -> Sequence[Record]:
    return HostCollector(options or HostOptions(), settings(root)).collect()


def test_the_collector_keeps_the_contract_on_this_machine() -> None:
    records = check_collector(SPEC, Settings(node="node0", job="job", clock=VirtualClock(NOW_NS)))
    node = values(records, Scope.NODE)[""]
    assert 0 < node["memory_available_bytes"] <= node["memory_total_bytes"]
    assert node["agent_rss_bytes"] > 1e6
    assert node["agent_cpu_s"] > 0


@pytest.mark.parametrize("tree", ["roce", "old-kernel"])
def test_the_collector_keeps_the_contract_on_a_captured_node(tree: str) -> None:
    check_collector(SPEC, settings(NODES / tree), collects=12)


def test_the_trees_together_have_every_column(tmp_path: Path) -> None:
    node = FakeNode(tmp_path)
    # CPU shares need time to pass between two collects.
    ticks = iter(range(1100, 9000, 100))
    records = [
        *check_collector(SPEC, settings(NODES / "roce")),
        *check_collector(
            SPEC,
            settings(tmp_path),
            between=lambda: node.write_proc("stat", f"cpu {next(ticks)} 0 500 8000 200 0 0 50 0 0\n"),
        ),
    ]
    reported = {
        (table.scope, name) for table in records if isinstance(table, SampleTable) for name in table.columns
    }
    assert reported == {(column.scope, column.name) for column in COLUMNS}


def test_the_node_is_read_in_si_units() -> None:
    node = values(collected(NODES / "roce"), Scope.NODE)[""]
    assert node["online_cpus"] == 2
    assert node["load_1min_processes"] == 96.02
    assert node["runnable_processes"] == 2
    assert node["context_switches"] == 38014093
    assert node["memory_total_bytes"] == 2113463396 * 1024
    assert node["memory_page_cache_bytes"] == 150000000 * 1024
    assert node["memory_shared_bytes"] == 33554432 * 1024
    assert node["swap_used_bytes"] == 0
    assert node["pressure_cpu_some_s"] == 14.036781
    assert node["pressure_memory_full_s"] == 0.125
    assert node["pressure_io_some_s"] == 9.0
    assert node["major_page_faults"] == 4096


def test_cpu_shares_are_of_the_time_between_two_collects(tmp_path: Path) -> None:
    node = FakeNode(tmp_path)
    node.write_proc("stat", "cpu  100 0 100 700 50 10 10 30 0 0\n")
    given_settings = settings(tmp_path)
    collector = HostCollector(HostOptions(), given_settings)
    assert "cpu_user_ratio" not in values(collector.collect(), Scope.NODE)[""]
    node.write_proc("stat", "cpu  140 10 110 710 60 15 5 50 0 0\n")
    shares = values(collector.collect(), Scope.NODE)[""]
    assert shares["cpu_user_ratio"] == pytest.approx(0.5)
    assert shares["cpu_system_ratio"] == pytest.approx(0.1)
    assert shares["cpu_idle_ratio"] == pytest.approx(0.1)
    assert shares["cpu_iowait_ratio"] == pytest.approx(0.1)
    assert shares["cpu_steal_ratio"] == pytest.approx(0.2)


def test_cpu_time_that_goes_back_is_no_negative_share(tmp_path: Path) -> None:
    node = FakeNode(tmp_path)
    node.write_proc("stat", "cpu  100 0 100 700 50 0 0 0 0 0\n")
    collector = HostCollector(HostOptions(), settings(tmp_path))
    collector.collect()
    node.write_proc("stat", "cpu  200 0 100 800 40 0 0 0 0 0\n")
    assert values(collector.collect(), Scope.NODE)[""]["cpu_iowait_ratio"] == 0
    node.write_proc("stat", "cpu  1 0 1 1 1 0 0 0 0 0\n")
    assert "cpu_user_ratio" not in values(collector.collect(), Scope.NODE)[""]


def test_the_network_is_the_one_of_the_node_and_not_of_the_agent() -> None:
    interfaces = values(collected(NODES / "roce"), Scope.NIC)
    assert interfaces["eno1np0"]["rx_bytes"] == 123456789
    assert interfaces["eno1np0"]["rx_dropped_packets"] == 5
    assert interfaces["eno1np0"]["tx_packets"] == 200000
    assert not {"lo", "eth0", "cali0a1b2c3d4e5"} & interfaces.keys()


def test_without_the_first_process_the_own_network_is_read() -> None:
    assert values(collected(NODES / "old-kernel"), Scope.NIC)["eth0"]["tx_bytes"] == 678


def test_a_link_that_is_down_has_no_speed() -> None:
    interfaces = values(collected(NODES / "roce"), Scope.NIC)
    assert interfaces["eno1np0"]["link_up"] == 1
    assert interfaces["eno1np0"]["speed_bytes_per_s"] == 25e9 / 8
    assert interfaces["enp65s0f0np0"]["link_up"] == 0
    assert "speed_bytes_per_s" not in interfaces["enp65s0f0np0"]


def test_infiniband_counts_words_of_four_bytes() -> None:
    port = values(collected(NODES / "roce"), Scope.NIC)["mlx5_0/1"]
    assert port["tx_bytes"] == 4_000_000
    assert port["rx_bytes"] == 8_000_000
    assert port["tx_packets"] == 3000
    assert port["tx_wait_ticks"] == 77
    assert port["speed_bytes_per_s"] == 50e9
    assert port["link_up"] == 1


def test_congestion_of_roce_is_read() -> None:
    port = values(collected(NODES / "roce"), Scope.NIC)["mlx5_0/1"]
    assert port["congestion_notifications_sent_packets"] == 12
    assert port["congestion_notifications_handled_packets"] == 13
    assert port["congestion_marked_packets"] == 14
    assert port["acknowledgement_timeouts"] == 18
    assert port["slow_restarts"] == 21


def test_a_counter_that_the_adapter_does_not_have_is_absent() -> None:
    port = values(collected(NODES / "roce"), Scope.NIC)["mlx5_1/1"]
    assert not {"tx_bytes", "rx_bytes", "congestion_marked_packets"} & port.keys()
    assert port["link_downs"] == 5
    assert port["link_up"] == 0


def test_links_and_their_errors_are_read_at_a_slower_pace(tmp_path: Path) -> None:
    node = FakeNode(tmp_path)
    node.infiniband_port("mlx5_0", 1, counters={"port_xmit_data": 1, "link_downed": 0})
    given_settings = settings(tmp_path)
    clock = given_settings.clock
    assert isinstance(clock, VirtualClock)
    collector = HostCollector(HostOptions(slow_interval_s=5.0), given_settings)
    slow = []
    for number in range(11):
        found = values(collector.collect(), Scope.NIC)
        assert found["mlx5_0/1"]["tx_bytes"] == 4
        slow += [number] if "link_downs" in found["mlx5_0/1"] else []
        clock.advance(1)
    assert slow == [0, 5, 10]


def test_disks_are_whole_ones_in_bytes_and_seconds() -> None:
    disks = values(collected(NODES / "roce"), Scope.DISK)
    assert set(disks) == {"nvme0n1", "dm-0"}
    assert disks["nvme0n1"] == {
        "read_operations": 11350,
        "read_bytes": 742642 * 512,
        "read_s": 3.144,
        "write_operations": 8220,
        "write_bytes": 640018 * 512,
        "write_s": 9.98,
        "busy_s": 7.312,
        "queue_s": 13.124,
    }


def test_an_operator_chooses_interfaces_and_disks(tmp_path: Path) -> None:
    FakeNode(tmp_path)
    records = collected(tmp_path, HostOptions(exclude_interfaces="eth.*", exclude_disks=""))
    assert set(values(records, Scope.NIC)) == {"lo"}
    assert set(values(records, Scope.DISK)) == {"nvme0n1", "loop0"}


def test_an_expression_that_is_none_is_a_mistake_in_the_configuration(tmp_path: Path) -> None:
    FakeNode(tmp_path)
    with pytest.raises(ConfigError, match=r"collectors\.host\.options\.exclude_disks"):
        HostCollector(HostOptions(exclude_disks="("), settings(tmp_path))


def test_an_old_kernel_has_what_it_has() -> None:
    records = collected(NODES / "old-kernel")
    node = values(records, Scope.NODE)[""]
    assert node["memory_total_bytes"] == 1000 * 1024
    assert not {"memory_available_bytes", "swap_used_bytes"} & node.keys()
    assert not any(name.startswith("pressure_") for name in node)
    assert values(records, Scope.DISK) == {}


def test_without_proc_it_says_what_to_mount(tmp_path: Path) -> None:
    assert "mount the host's /proc" in check_unavailable(SPEC, settings(tmp_path))


@pytest.mark.parametrize("name", ["loadavg", "meminfo", "vmstat", "net/dev", "diskstats", "pressure/io"])
@pytest.mark.parametrize("content", [None, b"", b"\xff\xfe garbage : x y z\n" * 3])
def test_a_file_that_is_gone_or_garbage_leaves_the_others(
    tmp_path: Path, name: str, content: bytes | None
) -> None:
    node = FakeNode(tmp_path)
    (node.proc / name).unlink()
    if content is not None:
        node.write_proc(name, content)
    records = check_collector(SPEC, settings(tmp_path))
    assert values(records, Scope.NODE)[""]["online_cpus"] == 2


def test_full_pressure_of_the_cpu_is_not_defined_and_so_absent() -> None:
    text = pressure(some_us=1_000_000, full_us=0).encode()
    assert procfs.parse_pressure("cpu", text) == {"pressure_cpu_some_s": 1.0}


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        (b"400 Gb/sec (4X NDR)\n", 50e9),
        (b"2.5 Gb/sec (1X SDR)", 0.3125e9),
        (b"unknown", None),
        (b"", None),
    ],
)
def test_rates_are_read_in_bytes(text: bytes, rate: float | None) -> None:
    assert parse_rate(text) == rate


PARSERS: Sequence[Callable[[bytes], object]] = (
    procfs.parse_stat_counts,
    procfs.parse_loadavg,
    procfs.parse_meminfo,
    procfs.parse_vmstat,
    procfs.parse_diskstats,
    lambda text: procfs.parse_pressure("io", text),
    parse_rate,
)
WORDS = st.sampled_from(
    [
        *b"cpu ctxt MemTotal: SwapFree: kB eth0: sda some full total= 1 -1 1.5 \xb2 Gb/sec".split(),
        b"\n",
        b" ",
        b"9" * 400,
    ]
)


@given(st.one_of(st.binary(max_size=300), st.lists(WORDS, max_size=60).map(b" ".join)))
def test_no_parser_raises_or_invents_a_negative(text: bytes) -> None:
    for parse in PARSERS:
        result = parse(text)
        if isinstance(result, dict):
            rows = [row if isinstance(row, dict) else {"": row} for row in result.values()]
            assert all(value >= 0 for row in rows for value in row.values())

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pynvml
import pytest
from perfd_collectors.nvml import SPEC, NvmlCollector, NvmlOptions
from perfd_collectors.nvml.columns import FAST_FIELDS, GPM_METRICS, NAMES, SLOW_FIELDS

from perfd.clock import VirtualClock
from perfd.collector import CollectorSpec, Settings
from perfd.errors import NothingHere, Unavailable
from perfd.model import Event, EventKind, GpuInfo, Record, SampleTable
from perfd.testing.collector_contract import check_collector, check_unavailable
from tests.support.fake_node import FakeNode
from tests.support.fake_nvml import FIELDS_HEALTHY, GPM_BUSY, FakeGpu, FakeNvml, FakeSlice

GPM_COLUMNS = {metric.column for metric in GPM_METRICS} - {"graphics_active_ratio"}
"""Those that are read each time."""


def settings() -> Settings:
    return Settings(node="node0", job="job", clock=VirtualClock(1_700_000_000 * 10**9))


def spec_of(fake: FakeNvml) -> CollectorSpec:
    return replace(SPEC, create=lambda options, settings: NvmlCollector(fake, options, settings))


class Watched:
    """A collector over a fake, with the clock moved on after each collect."""

    def __init__(self, fake: FakeNvml, *, slow_interval_s: float = 10.0) -> None:
        self.settings = settings()
        self.collector = NvmlCollector(fake, NvmlOptions(slow_interval_s=slow_interval_s), self.settings)

    def collect(self, *, then_s: float = 1.0) -> Sequence[Record]:
        records = self.collector.collect()
        self.settings.clock.advance(then_s)
        return records

    def table(self, *, then_s: float = 1.0) -> SampleTable:
        return next(record for record in self.collect(then_s=then_s) if isinstance(record, SampleTable))


def row(table: SampleTable, entity: str) -> dict[str, float]:
    """The values of one row that are not absent."""
    position = list(table.entities).index(entity)
    values = {name: column[position] for name, column in table.columns.items()}
    return {name: value for name, value in values.items() if not math.isnan(value)}


def events(records: Sequence[Record]) -> list[Event]:
    return [record for record in records if isinstance(record, Event)]


def infos(records: Sequence[Record]) -> list[GpuInfo]:
    return [record for record in records if isinstance(record, GpuInfo)]


def test_the_collector_keeps_the_contract_on_healthy_gpus() -> None:
    fake = FakeNvml([FakeGpu() for _ in range(8)])
    records = check_collector(spec_of(fake), settings(), collects=25)
    assert fake.samples_alive == 0
    assert fake.initialised == 0
    assert len(infos(records)) == 8
    reported = {name for record in records if isinstance(record, SampleTable) for name in record.columns}
    assert reported == set(NAMES)


def test_every_value_is_in_si_units() -> None:
    fake = FakeNvml([FakeGpu()])
    watched = Watched(fake, slow_interval_s=2.0)
    watched.collect()
    fast, slow = row(watched.table(), "0"), row(watched.table(), "0")
    assert slow["graphics_active_ratio"] == 0.95
    assert fast["sm_active_ratio"] == 0.8
    assert fast["sm_occupancy_ratio"] == 0.25
    assert fast["tensor_active_ratio"] == 0.4
    assert fast["integer_active_ratio"] == 0.12
    assert fast["fp64_active_ratio"] == 0.0
    assert fast["fp32_active_ratio"] == 0.08
    assert fast["fp16_active_ratio"] == 0.01
    assert fast["dram_active_ratio"] == 0.35
    assert fast["nvlink_tx_bytes_per_s"] == 1024 * 2**20
    assert fast["nvlink_rx_bytes_per_s"] == 2048 * 2**20
    assert fast["pcie_tx_bytes_per_s"] == 100 * 2**20
    assert fast["pcie_rx_bytes_per_s"] == 50 * 2**20
    assert fast["busy_ratio"] == 0.97
    assert fast["memory_busy_ratio"] == 0.4
    assert fast["power_w"] == 650.0
    assert fast["temperature_celsius"] == 55
    assert fast["memory_temperature_celsius"] == 60
    assert fast["sm_clock_hz"] == pytest.approx(1.98e9)
    assert fast["memory_clock_hz"] == pytest.approx(2.619e9)
    assert fast["memory_used_bytes"] == 60 * 2**30
    assert fast["memory_total_bytes"] == 80 * 2**30
    assert fast["clocks_event_reasons_bits"] == 4
    assert fast["clocks_limited_sw_power_s"] == 5.0
    assert fast["clocks_limited_sync_boost_s"] == 0.0
    assert fast["clocks_limited_sw_thermal_s"] == 1.0
    assert slow["energy_j"] == 7000.0
    assert slow["power_limit_w"] == 700.0
    assert slow["pcie_replays"] == 2
    assert slow["remapped_rows_correctable"] == 1
    assert slow["ecc_uncorrected_errors"] == 0


def test_ids_are_those_of_the_header() -> None:
    for metric in GPM_METRICS:
        assert metric.id == getattr(pynvml, f"NVML_GPM_METRIC_{metric.name}")
    names = {
        "ECC_SBE_VOL_TOTAL", "ECC_DBE_VOL_TOTAL", "TOTAL_ENERGY_CONSUMPTION", "PCIE_REPLAY_COUNTER",
        "REMAPPED_COR", "REMAPPED_UNC", "REMAPPED_PENDING", "REMAPPED_FAILURE", "MEMORY_TEMP",
        "CLOCKS_EVENT_REASON_SW_POWER_CAP", "CLOCKS_EVENT_REASON_SYNC_BOOST",
        "CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN", "CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN",
        "CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN",
    }  # fmt: skip
    assert {field.name for field in (*FAST_FIELDS, *SLOW_FIELDS)} == names
    for field in (*FAST_FIELDS, *SLOW_FIELDS):
        assert field.id == getattr(pynvml, f"NVML_FI_DEV_{field.name}")


def test_gpm_needs_two_samples_and_the_first_collect_has_one() -> None:
    watched = Watched(FakeNvml([FakeGpu()]))
    assert not GPM_COLUMNS & watched.table().columns.keys()
    assert watched.table().columns.keys() >= GPM_COLUMNS


def test_samples_less_than_a_tenth_of_a_second_apart_are_not_paired() -> None:
    fake = FakeNvml([FakeGpu()])
    watched = Watched(fake)
    watched.collect(then_s=0.05)
    assert not GPM_COLUMNS & watched.table(then_s=0.05).columns.keys()
    assert fake.calls["nvmlGpmSampleGet"] == 1
    assert watched.table().columns.keys() >= GPM_COLUMNS


def test_at_ten_hertz_every_collect_has_gpm() -> None:
    watched = Watched(FakeNvml([FakeGpu()]))
    watched.collect(then_s=0.1)
    tables = [watched.table(then_s=0.1) for _ in range(20)]
    assert all("sm_active_ratio" in table.columns for table in tables)


def test_a_metric_that_the_driver_refuses_is_absent_and_the_others_stay() -> None:
    gpm = {number: value for number, value in GPM_BUSY.items() if number != 5}
    watched = Watched(FakeNvml([FakeGpu(gpm=gpm)]))
    watched.collect()
    values = row(watched.table(), "0")
    assert "tensor_active_ratio" not in values
    assert values["sm_active_ratio"] == 0.8


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_metric_that_is_no_number_is_absent(value: float) -> None:
    watched = Watched(FakeNvml([FakeGpu(gpm={**GPM_BUSY, 10: value}), FakeGpu()]))
    watched.collect()
    table = watched.table()
    assert "dram_active_ratio" not in row(table, "0")
    assert row(table, "1")["dram_active_ratio"] == 0.35


def test_zeros_of_counters_that_did_not_move_are_not_activity() -> None:
    watched = Watched(FakeNvml([FakeGpu(gpm=dict.fromkeys(GPM_BUSY, 0.0))]))
    watched.collect()
    assert not GPM_COLUMNS & watched.table().columns.keys()


def test_an_idle_gpu_is_idle_and_not_absent() -> None:
    idle = {**dict.fromkeys(GPM_BUSY, 0.0), 10: math.nan}
    watched = Watched(FakeNvml([FakeGpu(gpm=idle)]))
    watched.collect()
    assert row(watched.table(), "0")["sm_active_ratio"] == 0.0


def test_a_gpu_without_gpm_has_utilisation_and_no_column_of_gpm() -> None:
    fake = FakeNvml([FakeGpu(name="NVIDIA A100-SXM4-80GB", gpm=None)])
    watched = Watched(fake)
    watched.collect()
    table = watched.table()
    assert not GPM_COLUMNS & table.columns.keys()
    assert row(table, "0")["busy_ratio"] == 0.97
    assert fake.calls["nvmlGpmSampleGet"] == 0


def test_a_node_of_both_kinds_has_gpm_where_there_is_gpm() -> None:
    watched = Watched(FakeNvml([FakeGpu(gpm=None), FakeGpu()]))
    watched.collect()
    table = watched.table()
    assert "sm_active_ratio" not in row(table, "0")
    assert row(table, "1")["sm_active_ratio"] == 0.8


def test_slow_values_are_read_at_their_own_pace() -> None:
    fake = FakeNvml([FakeGpu()])
    watched = Watched(fake, slow_interval_s=10.0)
    with_energy = [number for number in range(25) if "energy_j" in watched.table().columns]
    assert with_energy == [0, 10, 20]
    assert fake.calls["field 83"] == 3
    assert fake.calls["field 270"] == 3
    assert fake.calls["field 74"] == 25


def test_the_one_metric_of_gpm_that_takes_long_is_read_at_the_slow_pace() -> None:
    watched = Watched(FakeNvml([FakeGpu()]), slow_interval_s=5.0)
    tables = [watched.table() for _ in range(11)]
    assert [n for n, table in enumerate(tables) if "graphics_active_ratio" in table.columns] == [5, 10]


def test_what_a_gpu_is_is_asked_for_once() -> None:
    fake = FakeNvml([FakeGpu()])
    watched = Watched(fake)
    for _ in range(25):
        watched.collect()
    assert fake.calls["nvmlDeviceGetMaxClockInfo"] == 1


@pytest.mark.parametrize("code", [pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_NO_PERMISSION])
@pytest.mark.parametrize(
    ("function", "column"),
    [
        ("nvmlDeviceGetPowerUsage", "power_w"),
        ("nvmlDeviceGetUtilizationRates", "busy_ratio"),
        ("nvmlDeviceGetTemperature", "temperature_celsius"),
        ("nvmlDeviceGetMemoryInfo", "memory_used_bytes"),
        ("nvmlDeviceGetCurrentClocksEventReasons", "clocks_event_reasons_bits"),
        ("nvmlDeviceGetFieldValues", "clocks_limited_sw_power_s"),
        ("nvmlGpmSampleGet", "sm_active_ratio"),
    ],
)
def test_what_is_refused_for_good_is_absent_and_not_asked_for_again(
    function: str, column: str, code: int
) -> None:
    fake = FakeNvml([FakeGpu(errors={function: code}), FakeGpu()])
    watched = Watched(fake, slow_interval_s=1e9)
    watched.collect()
    asked = fake.calls[function]
    table = watched.table()
    assert column not in row(table, "0")
    assert column in row(table, "1")
    assert fake.calls[function] == asked + 1


def test_what_fails_once_is_asked_for_again() -> None:
    fake = FakeNvml([FakeGpu(errors={"nvmlDeviceGetPowerUsage": pynvml.NVML_ERROR_UNKNOWN})])
    watched = Watched(fake)
    assert "power_w" not in watched.table().columns
    fake.gpus[0].errors.clear()
    assert watched.table().columns["power_w"] == (650.0,)


def test_a_field_that_a_gpu_lacks_leaves_the_call_and_the_others_stay() -> None:
    fields = {number: value for number, value in FIELDS_HEALTHY.items() if number not in {82, 76}}
    fake = FakeNvml([FakeGpu(fields=fields)])
    watched = Watched(fake)
    for _ in range(3):
        table = watched.table()
    assert "memory_temperature_celsius" not in table.columns
    assert "clocks_limited_sw_power_s" in table.columns
    assert fake.calls["field 82"] == 1
    assert fake.calls["field 74"] == 3


def test_a_driver_before_535_knows_the_event_reasons_by_their_old_name() -> None:
    fake = FakeNvml([FakeGpu()], missing=["nvmlDeviceGetCurrentClocksEventReasons"])
    assert Watched(fake).table().columns["clocks_event_reasons_bits"] == (4.0,)


def test_a_driver_without_gpm_functions_is_read_without_them() -> None:
    fake = FakeNvml([FakeGpu()], missing=["nvmlGpmQueryDeviceSupport"])
    watched = Watched(fake)
    watched.collect()
    assert not GPM_COLUMNS & watched.table().columns.keys()


def test_a_lost_gpu_leaves_the_others_and_is_reported_once() -> None:
    fake = FakeNvml([FakeGpu(), FakeGpu(), FakeGpu()])
    watched = Watched(fake, slow_interval_s=2.0)
    watched.collect()
    fake.gpus[1].lost = True
    records = [record for _ in range(6) for record in watched.collect()]
    assert [(event.kind, event.gpu) for event in events(records)] == [(EventKind.HARDWARE_ERROR, 1)]
    assert all(table.entities == ["0", "2"] for table in records if isinstance(table, SampleTable))


def test_a_gpu_that_comes_back_is_read_again() -> None:
    fake = FakeNvml([FakeGpu(), FakeGpu()])
    watched = Watched(fake, slow_interval_s=2.0)
    watched.collect()
    fake.gpus[1].lost = True
    watched.collect()
    fake.gpus[1].lost = False
    records = [record for _ in range(4) for record in watched.collect()]
    tables = [record for record in records if isinstance(record, SampleTable)]
    assert tables[-1].entities == ["0", "1"]
    assert row(tables[-1], "1")["sm_active_ratio"] == 0.8
    fake.gpus[1].lost = True
    assert len(events(watched.collect())) == 1


def test_a_gpu_that_is_lost_from_the_start_is_reported_and_the_others_are_read() -> None:
    watched = Watched(FakeNvml([FakeGpu(lost=True), FakeGpu()]))
    records = watched.collect()
    assert [event.gpu for event in events(records)] == [0]
    assert watched.table().entities == ["1"]


def test_when_the_last_gpu_is_lost_it_is_reported_before_the_source_is_gone() -> None:
    fake = FakeNvml([FakeGpu()])
    watched = Watched(fake)
    watched.collect()
    fake.gpus[0].lost = True
    assert len(events(watched.collect())) == 1
    with pytest.raises(Unavailable, match="no GPU responds"):
        watched.collect()


def test_a_driver_that_goes_away_makes_the_source_unavailable_and_close_stays_legal() -> None:
    fake = FakeNvml([FakeGpu()])
    watched = Watched(fake)
    watched.collect()
    fake.initialised = 0
    with pytest.raises(Unavailable, match="kernel driver is not loaded"):
        watched.collect()
    watched.collector.close()
    watched.collector.close()


@pytest.mark.parametrize(
    ("code", "hint"),
    [
        (pynvml.NVML_ERROR_LIBRARY_NOT_FOUND, "NVIDIA runtime"),
        (pynvml.NVML_ERROR_DRIVER_NOT_LOADED, "nvidia-smi"),
        (pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH, "reboot"),
        (pynvml.NVML_ERROR_NO_PERMISSION, "access"),
        (pynvml.NVML_ERROR_UNKNOWN, "nvidia-smi"),
    ],
)
def test_a_missing_driver_is_unavailable_with_what_to_do(code: int, hint: str, tmp_path: Path) -> None:
    node = FakeNode(tmp_path)
    node.put_in_gpu()
    fake = FakeNvml([FakeGpu()], init_code=code)
    assert hint in check_unavailable(spec_of(fake), replace(settings(), sys=node.sys))


@pytest.mark.parametrize("code", [pynvml.NVML_ERROR_LIBRARY_NOT_FOUND, pynvml.NVML_ERROR_DRIVER_NOT_LOADED])
def test_a_node_without_gpus_has_nothing_to_read(code: int, tmp_path: Path) -> None:
    node = FakeNode(tmp_path)
    # Switches and network cards of the same vendor are no GPUs.
    node.write_sys("bus/pci/devices/0000:05:00.0/vendor", "0x10de\n")
    node.write_sys("bus/pci/devices/0000:05:00.0/class", "0x068000\n")
    node.write_sys("bus/pci/devices/0000:06:00.0/vendor", "0x1002\n")
    node.write_sys("bus/pci/devices/0000:06:00.0/class", "0x030000\n")
    with pytest.raises(NothingHere, match="no NVIDIA GPU"):
        spec_of(FakeNvml(init_code=code)).create(NvmlOptions(), replace(settings(), sys=node.sys))


def test_a_driver_without_gpus_is_unavailable_and_is_shut_down() -> None:
    fake = FakeNvml([])
    check_unavailable(spec_of(fake), settings())
    assert fake.initialised == 0


def test_mig_slices_have_rows_of_their_own() -> None:
    slices = [FakeSlice(gpu_instance=3), FakeSlice(gpu_instance=5, gpm={**GPM_BUSY, 2: 10.0})]
    fake = FakeNvml([FakeGpu(slices=slices), FakeGpu()])
    watched = Watched(fake)
    named = infos(watched.collect())
    table = watched.table()
    assert table.entities == ["0", "0/3", "0/5", "1"]
    assert row(table, "0/3")["sm_active_ratio"] == 0.8
    assert row(table, "0/5")["sm_active_ratio"] == 0.1
    assert row(table, "0/3")["memory_total_bytes"] == 10 * 2**30
    assert "power_w" not in row(table, "0/3")
    assert row(table, "0")["power_w"] == 650.0
    assert "busy_ratio" not in row(table, "0")
    assert [(info.index, info.mig) for info in named] == [(0, False), (0, True), (0, True), (1, False)]


def test_compute_instances_of_one_gpu_instance_share_a_row() -> None:
    slices = [FakeSlice(gpu_instance=3, compute_instance=number) for number in range(2)]
    assert Watched(FakeNvml([FakeGpu(slices=slices)])).table().entities == ["0", "0/3"]


def test_slices_that_are_cut_while_it_runs_are_found() -> None:
    fake = FakeNvml([FakeGpu()])
    watched = Watched(fake, slow_interval_s=5.0)
    watched.collect()
    fake.gpus[0].slices = [FakeSlice(gpu_instance=1)]
    records = [record for _ in range(6) for record in watched.collect()]
    assert any(info.mig for info in infos(records))
    assert watched.table().entities == ["0", "0/1"]
    watched.collector.close()
    assert fake.samples_alive == 0


def test_gpus_are_named_at_first_when_they_change_and_each_minute() -> None:
    fake = FakeNvml([FakeGpu(uuid="GPU-a")])
    watched = Watched(fake)
    assert infos(watched.collect()) == [
        GpuInfo(
            index=0,
            name="NVIDIA H100 80GB HBM3",
            uuid="GPU-a",
            memory_bytes=80 * 2**30,
            max_sm_clock_hz=pytest.approx(1.98e9),
        )
    ]
    named = [number for number in range(1, 121) if infos(watched.collect())]
    assert named == [60, 120]
    fake.gpus[0].uuid = "GPU-b"
    named = [info.uuid for _ in range(10) for info in infos(watched.collect())]
    assert named == ["GPU-b"]


def test_the_blocking_pcie_call_is_not_even_in_the_contract() -> None:
    assert not hasattr(FakeNvml, "nvmlDeviceGetPcieThroughput")
    assert not hasattr(FakeNvml, "nvmlDeviceGetTotalEnergyConsumption")

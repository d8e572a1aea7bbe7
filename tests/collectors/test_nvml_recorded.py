from __future__ import annotations

import gzip
import json
import math
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from perfd_collectors.nvml import SPEC, RecordedNvml
from perfd_collectors.nvml.columns import COLUMNS, NAMES
from perfd_collectors.nvml.jsonl_format import decode_lines

from perfd.clock import VirtualClock
from perfd.collector import Settings
from perfd.errors import RecordingError
from perfd.model import Record, SampleTable, Scope
from perfd.recording import bundled
from perfd.testing.collector_contract import check_records, check_replay

START_S = 1_795_225_496
LINE = {
    "unix_s": START_S + 0.5,
    "gpu": 2,
    "gpm": {
        "SM_UTIL": 82.5,
        "ANY_TENSOR_UTIL": 24.0,
        "NVLINK_TOTAL_TX_PER_SEC": 3.0,
        "HMMA_TENSOR_UTIL": 9.0,
    },
    "utilization_gpu_percent": 57,
    "utilization_memory_percent": 29,
    "power_w": 131.634,
    "temperature_c": 41,
    "sm_clock_mhz": 1980,
    "clocks_event_reasons": 4,
    "memory_used_bytes": 644939776,
    "read_cost_us": 6450,
}


def encoded(**changes: object) -> bytes:
    return json.dumps(LINE | changes).encode()


def settings(node: str = "node0", start_s: float = 0.0) -> Settings:
    return Settings(node=node, job="job", clock=VirtualClock(round(start_s * 1e9)))


def write(folder: Path, lines: Sequence[bytes]) -> Path:
    path = folder / "node0" / "nvml.jsonl"
    path.parent.mkdir()
    path.write_bytes(b"\n".join(lines) + b"\n")
    return path


def tables(records: Sequence[Record]) -> list[SampleTable]:
    return [record for record in records if isinstance(record, SampleTable)]


def test_a_line_becomes_a_row_in_si_units() -> None:
    (row,) = decode_lines([encoded()])
    assert row is not None
    assert row.time_unix_ns == START_S * 10**9 + 500_000_000
    assert row.entity == "2"
    assert row.values == {
        "sm_active_ratio": 0.825,
        "tensor_active_ratio": 0.24,
        "nvlink_tx_bytes_per_s": 3 * 2**20,
        "busy_ratio": 0.57,
        "memory_busy_ratio": 0.29,
        "power_w": 131.634,
        "temperature_celsius": 41,
        "sm_clock_hz": pytest.approx(1.98e9),
        "clocks_event_reasons_bits": 4,
        "memory_used_bytes": 644939776,
    }


def test_a_field_that_is_absent_or_null_is_absent() -> None:
    line = {"unix_s": START_S, "gpu": 0, "gpm": {"SM_UTIL": None}, "power_w": None}
    (row,) = decode_lines([json.dumps(line).encode()])
    assert row is not None
    assert row.values == {}


def test_nan_as_python_writes_it_is_absent_and_the_rest_of_the_line_stays() -> None:
    line = encoded(gpm={"SM_UTIL": 1.0, "DRAM_BW_UTIL": math.nan}, power_w=-math.inf)
    assert b"NaN" in line
    (row,) = decode_lines([line])
    assert row is not None
    assert row.values["sm_active_ratio"] == 0.01
    assert not {"dram_active_ratio", "power_w"} & row.values.keys()


@pytest.mark.parametrize(
    "line",
    [
        b"{",
        b"not json",
        b"[1, 2]",
        b'{"unix_s": 1.0}',
        encoded(gpu="no gpu"),
        encoded(gpu=-1),
        encoded(unix_s=-5),
        encoded(unix_s=1e300),
        encoded(power_w="131"),
        encoded(gpm=[1]),
        encoded()[:60],
        b"\xff\xfe" + encoded(),
    ],
)
def test_a_bad_line_is_none_and_the_next_line_is_read(line: bytes) -> None:
    first, second = decode_lines([line, b"", encoded()])
    assert first is None
    assert second is not None


@given(st.lists(st.binary(max_size=200), max_size=20))
@example([b'{"unix_s": NaN, "gpu": 0}'])
@example([b'{"unix_s": 1, "gpu": 0, "power_w": 1e999}'])
def test_garbage_never_raises_and_never_invents_a_row(lines: list[bytes]) -> None:
    for row in decode_lines(lines):
        assert row is None or row.values.keys() <= set(NAMES)


@given(st.integers(min_value=0, max_value=len(encoded())))
def test_a_cut_line_never_invents_a_value(length: int) -> None:
    (whole,) = decode_lines([encoded()])
    assert whole is not None
    cut = list(decode_lines([encoded()[:length]]))
    assert cut in ([], [None], [whole])


def test_rows_come_when_they_are_due_and_only_then(tmp_path: Path) -> None:
    path = write(tmp_path, [encoded(unix_s=START_S + number, gpu=0) for number in range(5)])
    given_settings = settings()
    clock = given_settings.clock
    assert isinstance(clock, VirtualClock)
    stream = RecordedNvml(path, given_settings)
    assert stream.span_unix_ns() == (START_S * 10**9, (START_S + 4) * 10**9)
    assert tables(stream.collect()) == []
    clock.advance_to_unix_ns(START_S * 10**9 + 1)
    assert [list(table.times_unix_ns) for table in tables(stream.collect())] == [[START_S * 10**9]]
    assert tables(stream.collect()) == []
    clock.advance_to_unix_ns((START_S + 3) * 10**9)
    (table,) = tables(stream.collect())
    assert [time // 10**9 - START_S for time in table.times_unix_ns] == [1, 2, 3]


def test_the_replay_keeps_the_contract(tmp_path: Path) -> None:
    lines = [encoded(unix_s=START_S + number / 10, gpu=gpu) for number in range(50) for gpu in range(4)]
    records = check_replay(SPEC, "nvml", write(tmp_path, lines), settings())
    assert sum(len(table.times_unix_ns) for table in tables(records)) == 200


def test_lines_out_of_order_are_played_in_order(tmp_path: Path) -> None:
    path = write(tmp_path, [encoded(unix_s=START_S + number) for number in (3, 1, 2)])
    stream = RecordedNvml(path, settings(start_s=START_S + 10))
    (table,) = tables(stream.collect())
    assert [time // 10**9 - START_S for time in table.times_unix_ns] == [1, 2, 3]


def test_bad_lines_are_counted_and_the_rest_is_played(tmp_path: Path) -> None:
    path = write(tmp_path, [b"garbage", encoded(), b'{"unix_s": 1}', encoded(gpu=1)])
    stream = RecordedNvml(path, settings(start_s=START_S + 10))
    assert stream.skipped_lines == 2
    (table,) = tables(stream.collect())
    assert table.entities == ["2", "1"]


def test_an_empty_file_has_no_span_and_no_rows(tmp_path: Path) -> None:
    stream = RecordedNvml(write(tmp_path, []), settings())
    assert stream.span_unix_ns() is None
    assert not stream.collect()


def test_a_compressed_file_is_played_too(tmp_path: Path) -> None:
    path = tmp_path / "nvml.jsonl.gz"
    path.write_bytes(gzip.compress(encoded()))
    assert RecordedNvml(path, settings()).span_unix_ns() is not None


DAMAGED = gzip.compress(b"", mtime=0)[:10] + b"\xff" * 20


@pytest.mark.parametrize("content", [None, b"not gzip", gzip.compress(encoded() * 50, mtime=0)[:40], DAMAGED])
def test_a_file_that_cannot_be_read_is_a_recording_error(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "nvml.jsonl.gz"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(RecordingError, match=r"nvml\.jsonl\.gz: cannot read the GPU samples"):
        RecordedNvml(path, settings())


@pytest.mark.parametrize("name", ["dp4", "dp4_slow2", "pp2dp2", "pp4_few"])
def test_a_real_recording_is_played_without_loss(name: str) -> None:
    path = bundled(name) / "node0" / "nvml.jsonl.gz"
    lines = gzip.decompress(path.read_bytes()).splitlines()
    assert RecordedNvml(path, settings()).skipped_lines == 0
    records = check_replay(SPEC, "nvml", path, settings(), step_s=0.5)
    assert sum(len(table.times_unix_ns) for table in tables(records)) == len(lines)
    decoded = [row for row in decode_lines(lines) if row is not None]
    assert all(0 <= row.values["sm_active_ratio"] <= 1 for row in decoded)
    assert max(row.values["tensor_active_ratio"] for row in decoded) > 0.1


def test_no_column_is_decoded_that_is_not_listed() -> None:
    line = encoded(columns={"energy_j": 5.0, "made_up_w": 1.0})
    (row,) = decode_lines([line])
    assert row is not None
    assert row.values["energy_j"] == 5.0
    assert row.values.keys() <= {column.name for column in COLUMNS}
    check_records(
        SPEC,
        [
            SampleTable(
                scope=Scope.GPU,
                times_unix_ns=[row.time_unix_ns],
                entities=[row.entity],
                columns={name: [value] for name, value in row.values.items()},
            )
        ],
    )

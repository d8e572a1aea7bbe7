"""What `perfd capture` prints of many ranks, and what it does without."""

from __future__ import annotations

import subprocess
import sys

import pytest

from perfd.capture.capture_routes import capture_routes
from perfd.cli import main
from perfd.net.http import HttpServer


def _rank(rank, state, reason, *files):
    paths = [{"path": path, "size_bytes": 1 << 20} for path in files]
    return {"rank": rank, "node": f"n{rank // 64}", "state": state, "reason": reason, "files": paths}


def _show(capsys, ranks):
    capture = {
        "id": "c1",
        "job": "llama",
        "server": False,
        "tool": "nsys",
        "alert": None,
        "state": "failed",
        "reason": "",
        "requested_unix_s": 0.0,
        "report": None,
        "ranks": ranks,
    }
    server = HttpServer(
        "127.0.0.1:0",
        capture_routes(
            captures=lambda: [capture], start=lambda _: "", cancel=lambda *_: None, link=lambda *_: ("", 0.0)
        ),
    )
    try:
        assert main(["capture", "show", "c1", "--aggregator", server.address]) == 0
    finally:
        server.close()
    return capsys.readouterr().out.splitlines()[2:]


def test_ranks_that_ended_in_one_way_are_one_line(capsys):
    ranks = [_rank(rank, "refused", "The disk is full.") for rank in range(66)]
    ranks[3] = _rank(3, "done", "", "/x/rank3.nsys-rep")
    ranks[4] = _rank(4, "failed", "nsys ended.")
    assert _show(capsys, ranks) == [
        f"  ranks 0, 1, 2, {', '.join(map(str, range(5, 18)))} and 46 more on n0: refused The disk is full.",
        "  rank 3 on n0: done",
        "    /x/rank3.nsys-rep (1.0 MB)",
        "  rank 4 on n0: failed nsys ended.",
        "  ranks 64, 65 on n1: refused The disk is full.",
    ]


def test_how_many_whole_steps_a_trace_holds_is_said_where_it_is_known(capsys):
    ranks = [_rank(rank, "done", "") | {"whole_steps": whole} for rank, whole in enumerate((5, 5, 1, None))]
    assert _show(capsys, ranks) == [
        "  ranks 0, 1 on n0: done (5 whole steps)",
        "  rank 2 on n0: done (1 whole step)",
        "  rank 3 on n0: done",
    ]


def test_each_rank_with_files_has_its_line(capsys):
    ranks = [_rank(rank, "done", "", f"/x/{rank}") for rank in range(2)]
    assert _show(capsys, ranks) == [
        "  rank 0 on n0: done",
        "    /x/0 (1.0 MB)",
        "  rank 1 on n0: done",
        "    /x/1 (1.0 MB)",
    ]


@pytest.mark.parametrize("module", ["numpy", "perfd.trace.diagnosis.trace_analysis", "perfd.report"])
def test_what_reads_no_traces_does_not_wait_for_their_analysis(module):
    parse = "from perfd.cli import build_parser; build_parser(['capture'])"
    code = f"import sys; {parse}; print({module!r} in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"

"""`perfd analyze`: what it prints and how it ends."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from pathlib import Path

import pytest

from perfd.cli import main
from tests.support import example_traces
from tests.support.traces import COMPUTE, NCCL, Op, kineto, write_json

_OPERATIONS = [Op(COMPUTE, 0, 60, launched=-5), Op(NCCL, 50, 80, launched=-4)]
_RANK_KEYS = {
    "rank", "file", "gpu", "span_s", "compute_s", "communication_s", "exposed_communication_s", "memory_s",
    "exposed_memory_s", "overlap_ratio", "idle_s", "idle", "kernel_count", "steps", "kernels", "collectives",
}  # fmt: skip

_UNUSED = {
    "grpc", "google.protobuf", "yaml", "wandb", "prometheus_client", "perfd.agent", "perfd.aggregator",
    "perfd.capture", "perfd.wire", "perfd.config", "perfd.model", "perfd.analysis.diagnosis.job_summary",
    "perfd.exporters",
}  # fmt: skip


@pytest.fixture
def trace(tmp_path):
    return write_json(tmp_path / "t.json", kineto(_OPERATIONS, steps={1: (0, 100)}))


def test_json_is_one_object_of_the_documented_shape(trace, capsys):
    assert main(["analyze", str(trace), "--json"]) == 0

    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == "perfd.trace/2"
    assert {"ranks", "bottleneck", "findings"} <= document.keys()
    (rank,) = document["ranks"]
    assert rank.keys() >= _RANK_KEYS
    assert rank["idle"].keys() >= {"launch_s", "sync_s", "other_s"}
    assert rank["overlap_ratio"] == pytest.approx(1 / 3)
    (step,) = rank["steps"]
    assert step["step"] == 1
    assert step["compute_s"] == pytest.approx(60e-6)
    assert rank["kernels"][0].keys() >= {"name", "class", "count", "total_s"}
    assert rank["collectives"][0].keys() >= {
        "group", "operation", "count", "total_s", "transfer_s", "wait_s",
    }  # fmt: skip


def test_the_text_says_what_limits_the_capture(trace, capsys):
    assert main(["analyze", str(trace)]) == 0

    text = capsys.readouterr().out
    assert text.startswith("Communication limits this job")
    assert "Largest part of the window: computation" in text
    assert "60.0%" in text


def test_mfu_is_shown_when_the_models_arithmetic_is_known(trace, capsys):
    assert main(["analyze", str(trace), "--model-flops-per-step", "4e10", "--json"]) == 0

    assert json.loads(capsys.readouterr().out)["model_use"]["mfu_ratio"] == pytest.approx(0.404, rel=0.01)


def test_a_file_that_cannot_be_read_is_one_sentence_and_exit_code_2(tmp_path, capsys):
    path = tmp_path / "t.json"
    path.write_text("{", encoding="utf-8")

    assert main(["analyze", str(path)]) == 2

    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(f"perfd analyze: {path}: ")
    assert captured.err.count("\n") == 1


def test_the_same_files_give_the_same_bytes(trace, capsys):
    main(["analyze", str(trace), "--json"])
    first = capsys.readouterr().out
    main(["analyze", str(trace), "--json"])

    assert capsys.readouterr().out == first


def test_a_summary_beside_the_trace_shows_the_models_arithmetic(trace, capsys):
    main(["replay", "dp4", "--speed", "max", "--json"])
    summary = capsys.readouterr().out
    (trace.parent / "summary.json").write_text(summary, encoding="utf-8")
    job = json.loads(summary)["jobs"][0]

    assert main(["analyze", str(trace), "--json"]) == 0

    use = json.loads(capsys.readouterr().out)["model_use"]
    expected = job["efficiency"]["model_flops_per_s_per_gpu"] * job["step_time_s"]["median"]
    assert use["model_flops_per_gpu_per_step"] == pytest.approx(expected)


def test_a_folder_means_the_traces_in_it(tmp_path, capsys):
    for rank in (0, 1):
        write_json(tmp_path / f"{rank}.json", kineto(_OPERATIONS, rank=rank, steps={1: (0, 100)}))
    for beside in ("perfd.trace.json", "0.stacks.json", "notes.txt"):
        (tmp_path / beside).write_text("{}", encoding="utf-8")

    assert main(["analyze", str(tmp_path), "--json"]) == 0

    assert [one["rank"] for one in json.loads(capsys.readouterr().out)["ranks"]] == [0, 1]


def test_a_folder_without_traces_is_one_sentence_and_exit_code_2(tmp_path, capsys):
    assert main(["analyze", str(tmp_path)]) == 2

    assert capsys.readouterr().err == (
        f"perfd analyze: {tmp_path}: this folder holds no trace:"
        " no file ends in .json, .json.gz, .sqlite, .sqlite.gz, .nsys-rep, .xplane.pb, .xplane.pb.gz.\n"
    )


def test_the_traces_of_the_first_hour_are_as_they_are_made_and_show_what_its_page_says(
    tmp_path, capsys, monkeypatch
):
    monkeypatch.chdir(Path(__file__).parents[2])
    shipped = Path("docs/examples/slow-rank")
    example_traces.main(tmp_path)
    for made in tmp_path.iterdir():
        assert gzip.decompress((shipped / made.name).read_bytes()) == gzip.decompress(made.read_bytes())

    assert main(["analyze", str(shipped)]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "Largest part of the window: computation" in printed
    assert "What costs the most of the window: straggler (rank 2) 21.6%" in printed
    assert "Explains communication: 16.2% of 25.2%; 9.0% more is unexplained." in printed
    page = Path("docs/first-hour.md").read_text(encoding="utf-8")
    shown = page[page.index("A straggler limits this job: rank 2.  Rank") :].split("```")[0]
    assert printed.startswith(" ".join(shown.split()))


@pytest.mark.parametrize("how", [[], ["--json"], ["--report", "report.html"]])
def test_it_starts_without_what_it_does_not_use(trace, how):
    """Half of what this command takes is Python that starts."""
    code = (
        f"import sys; from perfd.cli import main; main(['analyze', {str(trace)!r}, *{how!r}]);"
        "print(*sys.modules, sep='\\n', file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=trace.parent
    )
    loaded = set(done.stderr.split())
    assert "perfd.trace.diagnosis.trace_analysis" in loaded
    assert loaded & _UNUSED == set()
    assert ("rich" in loaded) == (how != ["--json"]), "only a terminal needs it"

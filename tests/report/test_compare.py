"""`perfd compare`: a gate that lets pass what it should, and nothing that it cannot see."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from analysis.jobs import description, job_data, phase_table, step_table

from perfd.analysis.diagnosis import AnalysisSettings, summarise
from perfd.cli import main
from perfd.model import ModelShape
from perfd.report.comparison.measures import Better, Measure, MeasuredRun, Unit, measures_of_summary
from perfd.report.comparison.run_comparison import ChangeVerdict, UnrelatedRunsError, compare
from tests.support.nccl_records import NcclTime
from tests.support.traces import COMPUTE, MATMUL, NCCL, Op, kineto, write_json

MODEL = ModelShape(
    layers=24,
    hidden_size=1024,
    ffn_size=4096,
    attention_heads=16,
    kv_heads=16,
    head_size=64,
    sequence_length=2048,
)


def _capture(folder, name, step_us, *, kernel=MATMUL):
    directory = folder / name
    directory.mkdir()
    for rank in (0, 1):
        operations = [
            Op(kernel, 0, step_us * 0.8, launched=-5),
            Op(NCCL, step_us * 0.7, step_us * 0.9, launched=-4),
        ]
        write_json(
            directory / f"{rank}.json.gz",
            kineto(operations, rank=rank, steps={1: (0, step_us)}),
            packed=True,
        )
    return str(directory)


def test_a_slower_step_beyond_the_bound_fails(tmp_path, capsys):
    a, b = _capture(tmp_path, "a", 1000), _capture(tmp_path, "b", 1050)

    assert main(["compare", a, b, "--json"]) == 1

    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == "perfd.compare/1"
    assert document["regressed"] is True
    (step,) = [one for one in document["changes"] if one["name"] == "step_time_s"]
    assert step["verdict"] == "regressed"
    assert step["change_ratio"] == pytest.approx(0.05)


@pytest.mark.parametrize(("bound", "code"), [("6%", 0), ("0.06", 0), ("4%", 1), ("0", 1)])
def test_the_bound_decides(tmp_path, bound, code):
    a, b = _capture(tmp_path, "a", 1000), _capture(tmp_path, "b", 1050)

    assert main(["compare", a, b, "--max-regression", bound]) == code


def test_what_is_nothing_in_both_is_the_same(tmp_path, capsys):
    a = _capture(tmp_path, "a", 1000)

    assert main(["compare", a, a, "--json"]) == 0
    changes = {one["name"]: one for one in json.loads(capsys.readouterr().out)["changes"]}
    assert (changes["exposed_memory_s"]["a"], changes["exposed_memory_s"]["verdict"]) == (0.0, "same")
    assert (changes["kernel_count"]["better"], changes["kernel_count"]["verdict"]) == (None, "same")


def test_what_takes_as_long_in_a_longer_step_is_no_better(capsys):
    assert main(["compare", "dp4", "dp4_slow2", "--json"]) == 1

    changes = {one["name"]: one for one in json.loads(capsys.readouterr().out)["changes"]}
    assert changes["communication_s"]["verdict"] == "same"
    assert changes["data_loading_s"]["verdict"] == "worse"
    unjudged = {one["verdict"] for one in changes.values() if one["better"] is None}
    assert unjudged <= {"same", "changed", "unknown"}
    assert changes["step_time_jitter_ratio"]["verdict"] == "changed"


def test_what_other_sources_show_is_neither_better_nor_worse():
    steps, job = step_table([1.0] * 20), description(world_size=4, dp=4)
    timers = phase_table(steps, {"all-grads-sync": (0.2, 0.2)})
    kernels = [NcclTime(rank=rank, busy_s=0.3, span_s=1, lost_operations=0) for rank in range(4)]
    first, again, other = (
        measures_of_summary(
            summarise(job_data(steps, description=job, **reported), AnalysisSettings()),
            "run",
        )
        for reported in (
            {"phases": timers},
            {"phases": phase_table(steps, {"all-grads-sync": (0.3, 0.3)})},
            {"phases": timers, "nccl": kernels},
        )
    )

    by_timers = {one.name: one for one in compare(first, again, 0.03).changes}["communication_s"]
    by_another = {one.name: one for one in compare(first, other, 0.03).changes}["communication_s"]

    assert (by_timers.b, by_timers.verdict) == (pytest.approx(0.3), ChangeVerdict.WORSE)
    assert (by_another.b, by_another.verdict) == (pytest.approx(0.3), ChangeVerdict.CHANGED)


def test_a_faster_step_passes(tmp_path, capsys):
    a, b = _capture(tmp_path, "a", 1000), _capture(tmp_path, "b", 900)

    assert main(["compare", a, b]) == 0
    assert "No regression" in capsys.readouterr().out


def test_kernels_that_changed_most_come_first(tmp_path, capsys):
    a, b = _capture(tmp_path, "a", 1000), _capture(tmp_path, "b", 1000, kernel=COMPUTE)

    main(["compare", a, b, "--json"])

    kernels = json.loads(capsys.readouterr().out)["kernels"]
    assert {kernel["name"] for kernel in kernels} == {MATMUL, COMPUTE}
    assert {(kernel["a_s"] > 0, kernel["b_s"] > 0) for kernel in kernels} == {(True, False), (False, True)}


def test_an_analysis_that_was_printed_compares_like_its_traces(tmp_path, capsys):
    a, b = _capture(tmp_path, "a", 1000), _capture(tmp_path, "b", 1050)
    main(["analyze", *(str(tmp_path / "b" / f"{rank}.json.gz") for rank in (0, 1)), "--json"])
    printed = tmp_path / "b.json"
    printed.write_text(capsys.readouterr().out, encoding="utf-8")

    main(["compare", a, b, "--json"])
    by_traces = json.loads(capsys.readouterr().out)["changes"]
    main(["compare", a, str(printed), "--json"])

    assert json.loads(capsys.readouterr().out)["changes"] == by_traces


def test_recordings_compare_through_their_summaries(capsys):
    assert main(["compare", "dp4", "dp4_slow2"]) == 1
    assert "Regressed: step_time_s" in capsys.readouterr().out


def test_traces_without_steps_cannot_pass_a_gate(tmp_path, capsys):
    path = str(write_json(tmp_path / "t.json", kineto([Op(COMPUTE, 0, 10)])))

    assert main(["compare", path, path]) == 2
    assert "marked steps" in capsys.readouterr().err


def test_a_summary_and_a_trace_cannot_be_compared(tmp_path, capsys):
    assert main(["compare", "dp4", _capture(tmp_path, "a", 1000)]) == 2
    assert "like with like" in capsys.readouterr().err


@pytest.mark.parametrize(
    "content", ['{"schema": "perfd.trace/2", "ranks": [{}]}', '{"schema": "perfd.trace/2", "ra', ""]
)
def test_a_damaged_file_is_one_sentence(tmp_path, capsys, content):
    path = tmp_path / "x.json"
    path.write_text(content, encoding="utf-8")

    assert main(["compare", str(path), str(path)]) == 2
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize("bound", ["3 percent", "-1%", "200%"])
def test_a_bound_that_is_no_ratio_is_refused(bound, capsys):
    with pytest.raises(SystemExit):
        main(["compare", "a", "b", f"--max-regression={bound}"])
    assert "write 3% or 0.03" in capsys.readouterr().err


def test_kernels_are_new_gone_more_longer_or_shorter(tmp_path, capsys):
    def capture(name, *operations):
        content = kineto([*operations, Op("same_gemm", 900, 950)], steps={1: (0, 500), 2: (500, 1000)})
        return str(write_json(tmp_path / name, content))

    a = capture(
        "a.json",
        Op("old_gemm", 0, 50),
        Op("a_gemm", 100, 200),
        Op("b_gemm", 300, 310),
        Op("c_gemm", 400, 440),
    )
    b = capture(
        "b.json",
        Op("new_gemm", 0, 60),
        Op("a_gemm", 100, 230),
        *(Op("b_gemm", at, at + 10) for at in (300, 320, 340)),
        Op("c_gemm", 400, 410),
    )
    main(["compare", a, b, "--json"])
    kernels = {one["name"]: one for one in json.loads(capsys.readouterr().out)["kernels"]}
    assert {name: one["kind"] for name, one in kernels.items()} == {
        "old_gemm": "gone",
        "new_gemm": "new",
        "a_gemm": "longer",
        "b_gemm": "more",
        "c_gemm": "shorter",
    }
    assert (kernels["b_gemm"]["a_count"], kernels["b_gemm"]["b_count"]) == (0.5, 1.5)
    main(["compare", a, b])
    assert "more (0.5 to 1.5)" in capsys.readouterr().out


def _run_of(name="run", times=(1.0,) * 20, **fields):
    job = job_data(step_table(list(times)), description=replace(description(), **fields))
    return measures_of_summary(summarise(job, AnalysisSettings()), name)


def test_runs_of_other_models_are_refused_unless_asked_for():
    small, large = (
        _run_of(name, model=replace(MODEL, layers=layers)) for name, layers in (("small", 24), ("large", 96))
    )

    with pytest.raises(UnrelatedRunsError, match="small and large are unrelated runs: layers 24 and 96"):
        compare(small, large, 0.03)
    found = compare(small, large, 0.03, any_runs=True)
    assert ("model", "layers", "24", "96") in {
        (one.area, one.name, one.a, one.b) for one in found.differences
    }


def test_runs_of_other_frameworks_are_refused_and_unknown_ones_are_not():
    with pytest.raises(UnrelatedRunsError, match="framework megatron-lm and hf-trainer"):
        compare(_run_of(framework="megatron-lm"), _run_of(framework="hf-trainer"), 0.03)
    assert not compare(_run_of(framework="megatron-lm"), _run_of(framework=""), 0.03).regressed


def test_a_longer_sequence_is_a_difference_of_one_model():
    found = compare(_run_of(model=MODEL), _run_of(model=replace(MODEL, sequence_length=123)), 0.03)
    assert [(one.area, one.name, one.b) for one in found.differences] == [("model", "sequence_length", "123")]


def test_options_that_differ_are_listed_and_secrets_are_not():
    a = _run_of(arguments={"lr": "1e-4", "seed": "1", "wandb_api_key": "abc", "url": "https://me:pw@host/x"})
    b = _run_of(arguments={"lr": "3e-4", "seed": "1", "wandb_api_key": "def", "new": "yes"})

    found = {(one.name, one.a, one.b) for one in compare(a, b, 0.03).differences}

    assert found == {("lr", "1e-4", "3e-4"), ("url", "https://(hidden)@host/x", None), ("new", None, "yes")}
    assert a.settings["arguments"]["wandb_api_key"] == "(hidden)"


def test_versions_that_differ_are_listed():
    a = _run_of(software={"NCCL": "2.20.5", "PyTorch": "2.4.0", "cuDNN": "9.1"})
    b = _run_of(software={"NCCL": "2.21.5", "PyTorch": "2.4.0", "NVIDIA driver": "570.86.10"})

    found = [(one.area, one.name, one.a, one.b) for one in compare(a, b, 0.03).differences]

    assert found == [
        ("versions", "NCCL", "2.20.5", "2.21.5"),
        ("versions", "NVIDIA driver", None, "570.86.10"),
        ("versions", "cuDNN", "9.1", None),
    ]
    assert not compare(a, _run_of(), 0.03, any_runs=True).differences


def test_what_was_zero_is_new():
    def run(value):
        step = Measure(name="step_time_s", value=1.0, unit=Unit.SECONDS, better=Better.LOWER, gate=True)
        stall = Measure(name="data_loading_s", value=value, unit=Unit.SECONDS, better=Better.LOWER)
        return MeasuredRun(name="run", kind="summary", measures=(step, stall))

    verdicts = [compare(run(a), run(b), 0.03).changes[1].verdict for a, b in ((0, 0.2), (0, 0), (0.2, 0))]

    assert verdicts == [ChangeVerdict.NEW, ChangeVerdict.SAME, ChangeVerdict.BETTER]


def test_traces_without_a_common_kernel_are_refused(tmp_path, capsys):
    def one(name, kernel):
        content = kineto([Op(kernel, 0, 400)], steps={1: (0, 500)})
        return str(write_json(tmp_path / name, content))

    a, b = one("a.json", MATMUL), one("b.json", COMPUTE)

    assert main(["compare", a, b]) == 2
    assert "no kernel in common" in capsys.readouterr().err
    assert main(["compare", a, b, "--unrelated"]) == 0


@pytest.mark.parametrize("ending", ["md", "html", "json"])
def test_a_comparison_is_a_report_too(tmp_path, ending, capsys):
    path = tmp_path / f"report.{ending}"

    assert main(["compare", "dp4", "pp4_few", "--output", str(path)]) == 1

    text = path.read_text(encoding="utf-8").replace("\\", "")
    assert "pipeline_model_parallel_size" in text
    assert "Regressed: tokens_per_s, mfu_ratio (3.0% allowed)." in text
    assert "pipeline_model_parallel_size" in capsys.readouterr().out

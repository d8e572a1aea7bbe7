"""Advice names options of the framework that runs, and only those that are not set."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from analysis.jobs import description, job_data, phase_table, step_table

from perfd.analysis.diagnosis import AnalysisSettings, summarise
from perfd.analysis.findings import Kind, OptionsOf, Software, advice, fitted, is_set, software_of
from perfd.analysis.findings.framework_options import option_table

NAMES = Path(__file__).parents[1] / "fixtures/framework_options"
"""What frameworks call their options, as their source has them."""
EVERY = [value for name in dir(advice) if isinstance(value := getattr(advice, name), str) and name.isupper()]


def software(framework: OptionsOf | None, **arguments: str) -> Software:
    return Software(framework=framework, arguments=arguments)


@pytest.mark.parametrize(
    ("framework", "operations", "expected"),
    [
        ("megatron-lm", ["ReduceScatter", "AllGather"], OptionsOf.MEGATRON),
        ("hf-trainer", ["AllReduce"], OptionsOf.HF_TRAINER),
        ("torchtitan", [], OptionsOf.FSDP),
        (None, ["ReduceScatter", "AllGather", "AllReduce"], OptionsOf.FSDP),
        ("perfd.hook", ["AllReduce", "Broadcast"], OptionsOf.DDP),
        (None, ["AllGather"], None),
        ("nemo", ["AllReduce"], None),
    ],
)
def test_what_runs_is_known_by_the_log_else_by_the_collectives_of_a_loop(framework, operations, expected):
    assert software_of(framework, {}, operations).framework is expected


@pytest.mark.parametrize("framework", [*OptionsOf, None])
@pytest.mark.parametrize("text", EVERY)
def test_no_advice_names_options_of_another_framework(text: str, framework: OptionsOf | None):
    said = fitted(text, software(framework))

    assert "[[" not in said
    others = {
        option
        for by_framework in option_table().options.values()
        for other, options in by_framework.items()
        if other is not framework
        for option in options
        if option.startswith("--") or "_" in option or "." in option
    }
    own = " ".join(
        option for options in option_table().options.values() for option in options.get(framework, ())
    )
    assert not [option for option in others if option in said and option not in own]


def test_options_that_the_job_has_set_are_left_out():
    some = software(OptionsOf.MEGATRON, use_distributed_optimizer="True", overlap_param_gather="False")

    assert fitted("Gather [[overlap_parameters]].", some) == "Gather (Megatron-LM: --overlap-param-gather)."
    assert is_set("shard_optimizer", some)
    assert fitted("Shard [[shard_optimizer]].", some) == "Shard."
    assert not is_set("shard_optimizer", software(OptionsOf.MEGATRON))
    assert not is_set("shard_optimizer", software(None, use_distributed_optimizer="True"))


@pytest.mark.parametrize(
    ("name", "arguments", "left"),
    [
        ("phase_timers", {"timing_log_level": "2"}, " (Megatron-LM: --log-throughput)"),
        (
            "phase_timers",
            {"timing_log_level": "0", "log_throughput": "True"},
            " (Megatron-LM: --timing-log-level 2)",
        ),
        ("loader", {"num_workers": "2"}, " (Megatron-LM: --num-workers, now 2)"),
        ("no_barriers", {"barrier_with_L1_time": "True"}, " (Megatron-LM: --no-barrier-with-level-1-timing)"),
        ("no_barriers", {"barrier_with_L1_time": "False"}, ""),
        ("interleave", {"num_layers_per_virtual_pipeline_stage": "None"},
         " (Megatron-LM: --num-layers-per-virtual-pipeline-stage)"),
        ("interleave", {"num_layers_per_virtual_pipeline_stage": "2"}, ""),
        ("larger_launches", {}, " (Megatron-LM: --cuda-graph-impl local)"),
        (
            "larger_launches",
            {"cuda_graph_impl": "none", "enable_cuda_graph": "False"},
            " (Megatron-LM: --cuda-graph-impl local)",
        ),
        ("larger_launches", {"cuda_graph_impl": "transformer_engine"}, ""),
        ("larger_launches", {"enable_cuda_graph": "True"}, ""),
        ("larger_launches", {"external_cuda_graph": "True", "cuda_graph_impl": "none"}, ""),
        # A version that knows no other one.
        ("larger_launches", {"enable_cuda_graph": "False"}, " (Megatron-LM: --enable-cuda-graph)"),
    ],
)  # fmt: skip
def test_values_of_arguments_say_whether_an_option_is_set(name: str, arguments: Mapping[str, str], left: str):
    assert fitted(f"Do it [[{name}]].", software(OptionsOf.MEGATRON, **arguments)) == f"Do it{left}."


def named(framework: OptionsOf) -> list[str]:
    """The options of a framework that an advice may name, without values."""
    return sorted(
        {
            re.split("[ =(]", option)[0]
            for by_framework in option_table().options.values()
            for option in by_framework.get(framework, ())
        }
    )


@pytest.mark.parametrize(
    ("framework", "file"), [(OptionsOf.MEGATRON, "megatron-lm.txt"), (OptionsOf.HF_TRAINER, "trainer.txt")]
)
def test_options_are_spelled_as_in_the_source_of_their_framework(framework: OptionsOf, file: str):
    known = {line for line in (NAMES / file).read_text().splitlines() if not line.startswith("#")}

    assert len(known) > 100
    assert [option for option in named(framework) if option not in known] == []


def test_each_framework_has_a_source_and_an_option_and_each_advice_one_that_is_in_the_table():
    table = option_table()
    asked = {name for text in EVERY for name in re.findall(r"\[\[(\w+)\]\]", text)}

    assert set(table.sources) == set(OptionsOf)
    assert all(named(framework) for framework in OptionsOf)
    assert asked <= set(table.options)


def test_a_sharded_optimizer_is_not_advised_to_be_sharded_and_the_gain_is_in_steps_and_mfu():
    steps = step_table([1.0] * 20)
    timers = phase_table(steps, {"optimizer": (0.2, 0.2)})
    zero = replace(description(), framework="deepspeed", arguments={"zero_optimization.stage": "1"})

    (first, *_) = summarise(job_data(steps, description=zero, phases=timers), AnalysisSettings()).findings

    assert first.kind is Kind.OPTIMIZER
    assert "is sharded already" in first.advice
    assert "Megatron" not in first.advice
    assert first.advice.endswith("At best 800.0 ms per step instead of 1000.0 ms.")

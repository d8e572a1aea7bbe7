"""What the arguments of a training process say of its model."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from perfd_collectors.model_config.arguments import ModelArguments, config_files, model_arguments


def said(line: str) -> ModelArguments:
    return model_arguments(line.split())


@pytest.mark.parametrize(
    ("line", "model", "length", "precision"),
    [
        ("python run_clm.py --model_name_or_path gpt2 --block_size 1024 --bf16", "gpt2", 1024, "bf16"),
        (
            "python t.py --model-name-or-path=/m/llama --max_seq_length=4096 --bf16 True",
            "/m/llama",
            4096,
            "bf16",
        ),
        ("python t.py --model a/b --cutoff_len 2048 --fp16 --output_dir x", "a/b", 2048, "fp16"),
        ("python t.py --model a/b --bf16 false --torch_dtype float16", "a/b", None, "fp16"),
        ("accelerate launch --mixed_precision bf16 t.py --model_path m", "m", None, "bf16"),
        ("python t.py --precision bf16-mixed --seq-len 512", None, 512, "bf16"),
        ("python t.py --block_size 0 --model --bf16 no", None, None, None),
        ("python t.py --block_size 99999999999", None, None, None),
        ("python t.py 4096 bf16", None, None, None),
    ],
)
def test_model_length_and_precision(line, model, length, precision):
    found = said(line)
    assert (found.model, found.sequence_length, found.precision) == (model, length, precision)
    assert found.trains_all


@pytest.mark.parametrize(
    "option",
    [
        "--use_peft",
        "--use_peft True",
        "--lora_r 16",
        "--load_in_4bit",
        "--finetuning_type lora",
        "--train_type=lora",
    ],
)
def test_a_job_that_trains_a_part_of_its_weights_has_fewer_operations(option):
    assert not said(f"python t.py --model_name_or_path m --block_size 8 {option}").trains_all


@pytest.mark.parametrize("option", ["--use_peft False", "--finetuning_type full", "--lora_r 0"])
def test_an_option_that_is_off_changes_nothing(option):
    assert said(f"python t.py --model_name_or_path m --block_size 8 {option}").trains_all


def test_a_name_of_the_hub_is_looked_for_in_the_cache_of_the_process():
    folder = Path("/job")
    home = config_files("meta/llama", cwd=folder, environ={"HOME": "/home/u"})
    assert home == [
        Path("/job/meta/llama/config.json"),
        Path("/home/u/.cache/huggingface/hub/models--meta--llama/snapshots/*/config.json"),
    ]
    assert config_files("meta/llama", cwd=folder, environ={"HF_HOME": "/hf"})[1].is_relative_to("/hf/hub")
    assert config_files("meta/llama", cwd=folder, environ={"HF_HUB_CACHE": "/c"})[1].is_relative_to("/c")
    assert config_files("/m/own.json", cwd=folder, environ={}) == [Path("/m/own.json")]
    assert config_files("../x", cwd=folder, environ={}) == [Path("/job/../x/config.json")]


@given(st.lists(st.text()))
def test_any_command_line_is_read(words):
    model_arguments(words)

"""The collector that describes models: by hand, and from the arguments of a job's processes."""

from __future__ import annotations

import json
import os

import pytest
from model_config.test_hf_config import LLAMA3_8B
from perfd_collectors.model_config import SPEC, ModelConfigOptions, check_options

from perfd.clock import VirtualClock
from perfd.collector import LocalRank, Settings
from perfd.errors import ConfigError
from perfd.model import ModelSource

JOB, PID = "train", 4711


@pytest.fixture
def settings(tmp_path):
    return Settings(node="n", job=JOB, clock=VirtualClock(), proc=tmp_path / "proc")


@pytest.fixture
def model(tmp_path):
    file = tmp_path / "llama" / "config.json"
    file.parent.mkdir()
    file.write_text(json.dumps(LLAMA3_8B))
    return file


def process(settings, line, cwd, *, environ=""):
    folder = settings.proc / str(PID)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "cmdline").write_text("\0".join(line.split()) + "\0")
    (folder / "environ").write_text("\0".join(environ.split()))
    (folder / "cwd").unlink(missing_ok=True)
    (folder / "cwd").symlink_to(cwd)
    settings.local_jobs.replace({JOB: os.getuid()}, [LocalRank(JOB, 0, PID)])


def collector(settings, **options):
    return SPEC.create(ModelConfigOptions(**options), settings)


def test_by_hand_it_describes_the_agents_job_and_repeats_that(settings, model):
    options = {"file": str(model), "sequence_length": 2048, "tokens_per_step": 1e6, "precision": "bf16"}
    source = collector(settings, **options)
    (found,) = source.collect()
    assert (found.job, found.model_source, found.precision) == (JOB, ModelSource.CONFIG, "bf16")
    assert (found.model.layers, found.model.sequence_length, found.tokens_per_step) == (32, 2048, 1e6)
    settings.clock.advance(29.0)
    assert source.collect() == []
    settings.clock.advance(1.0)
    assert source.collect() == [found]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"file": "no"}, "needs the length of its sequences"),
        ({"file": "no", "sequence_length": 8}, "Cannot read no: No such file"),
        ({"file": "/dev/null", "sequence_length": 8}, "Cannot read /dev/null"),
        ({"sequence_length": 0}, "sequence_length must be more than 0"),
        ({"tokens_per_step": -1.0}, "tokens_per_step must be more than 0"),
        ({"flops_per_step": float("inf")}, "flops_per_step must be more than 0"),
        ({"flops_per_step": float("nan")}, "flops_per_step must be more than 0"),
    ],
)
def test_options_that_cannot_be_used_are_refused_with_a_reason(settings, options, words):
    with pytest.raises(ConfigError, match=words):
        collector(settings, **options)
    with pytest.raises(ConfigError, match=words):
        check_options(options)


def test_the_config_is_found_by_the_arguments_of_the_jobs_process(settings, model):
    source = collector(settings)
    assert source.collect() == []
    process(settings, "python t.py --model_name_or_path llama --block_size 1024 --bf16", model.parent.parent)
    (found,) = source.collect()
    assert (found.job, found.model_source, found.precision) == (JOB, ModelSource.ARGUMENTS, "bf16")
    assert (found.model.hidden_size, found.model.sequence_length) == (4096, 1024)


def test_it_is_found_in_the_hubs_cache(settings, model, tmp_path):
    snapshot = tmp_path / "hub" / "models--meta--llama" / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    model.rename(snapshot / "config.json")
    line = "python t.py --model_name_or_path meta/llama --block_size 1024"
    process(settings, line, tmp_path, environ=f"HF_HUB_CACHE={tmp_path / 'hub'}")
    (found,) = collector(settings).collect()
    assert found.model.layers == 32


@pytest.mark.parametrize(
    "line",
    [
        "python t.py --model_name_or_path llama",
        "python t.py --model_name_or_path nowhere --block_size 8",
        "python t.py --model_name_or_path llama --block_size 8 --use_peft",
        "python t.py",
    ],
)
def test_nothing_is_guessed(settings, model, line):
    process(settings, line, model.parent.parent)
    assert collector(settings).collect() == []


def test_it_can_be_switched_off_and_the_operators_word_counts(settings, model):
    process(settings, "python t.py --model_name_or_path llama --block_size 8", model.parent.parent)
    assert collector(settings, find=False).collect() == []
    (found,) = collector(settings, flops_per_step=1e15).collect()
    assert (found.flops_per_step, found.model) == (1e15, None)


def test_a_pipe_in_the_place_of_the_file_blocks_nobody(settings, model):
    model.unlink()
    os.mkfifo(model)
    process(settings, "python t.py --model_name_or_path llama --block_size 8", model.parent.parent)
    assert collector(settings).collect() == []


@pytest.mark.skipif(os.getuid() != 0, reason="needs root to become another user")
def test_a_file_is_read_with_the_rights_of_the_jobs_user(settings, model):
    model.chmod(0o600)
    process(settings, "python t.py --model_name_or_path llama --block_size 8", model.parent.parent)
    settings.local_jobs.replace({JOB: 65_534}, [LocalRank(JOB, 0, PID)])
    assert collector(settings).collect() == []


def test_a_job_that_ended_is_forgotten_and_a_new_process_is_read_again(settings, model):
    source = collector(settings)
    process(settings, "python t.py --model_name_or_path llama --block_size 1024", model.parent.parent)
    assert source.collect()
    settings.local_jobs.replace({})
    assert source.collect() == []
    process(settings, "python t.py --model_name_or_path llama --block_size 512", model.parent.parent)
    (found,) = source.collect()
    assert found.model.sequence_length == 512

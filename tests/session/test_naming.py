from __future__ import annotations

import pytest

from perfd.session.job.job_naming import job_name, results_folder

TIME_NS = 1_795_225_601_000_000_000


@pytest.mark.parametrize(
    ("command", "environment", "name"),
    [
        (["torchrun", "--nproc-per-node", "8", "/src/pretrain_gpt.py", "--seed", "1"], {}, "pretrain_gpt"),
        (["python", "-m", "torch.distributed.run", "train.py"], {}, "train"),
        (["torchrun", "--nnodes", "2", "-m", "megatron.pretrain"], {}, "pretrain"),
        (["python", "-m"], {}, "python"),
        (["bash", "jobs/night.sh"], {}, "night"),
        (["/usr/bin/sleep", "5"], {}, "sleep"),
        (["torchrun", "train.py"], {"SLURM_JOB_ID": "4711"}, "4711"),
        (["torchrun", "train.py"], {"SLURM_JOB_ID": ""}, "train"),
    ],
)
def test_a_job_is_named_after_slurm_or_its_script(command, environment, name):
    assert job_name(command, environment) == name


def test_results_go_to_a_folder_named_by_job_and_time(tmp_path):
    assert results_folder(tmp_path, "gpt", TIME_NS) == tmp_path / "gpt-20261121T014641Z"


def test_a_folder_that_exists_is_never_used_again(tmp_path):
    for wanted in ("gpt-20261121T014641Z", "gpt-20261121T014641Z-2", "gpt-20261121T014641Z-3"):
        folder = results_folder(tmp_path, "gpt", TIME_NS)
        assert folder == tmp_path / wanted
        folder.mkdir()


@pytest.mark.parametrize("job", ["../../etc/cron.d/x", "a/b", "..", "", "a b\0c"])
def test_a_job_cannot_choose_a_folder_elsewhere(tmp_path, job):
    assert results_folder(tmp_path, job, TIME_NS).parent == tmp_path


def test_a_name_of_any_length_has_a_folder(tmp_path):
    results_folder(tmp_path, "a" * 1000, 0).mkdir()

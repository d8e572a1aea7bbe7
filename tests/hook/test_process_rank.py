"""The hook's rank: by the process group if there is one, else by the launcher's variables."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from perfd.hook.process_rank import process_rank


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, (None, None)),
        ({"RANK": "5", "WORLD_SIZE": "8", "SLURM_PROCID": "1"}, (5, 8)),
        ({"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "4", "SLURM_PROCID": "0"}, (3, 4)),
        ({"PMI_RANK": "2", "PMI_SIZE": "4"}, (2, 4)),
        ({"SLURM_PROCID": "7", "SLURM_NTASKS": "16"}, (7, 16)),
        # Lightning's own launcher, on one node and on the second of two.
        ({"LOCAL_RANK": "3", "WORLD_SIZE": "4", "NODE_RANK": "0"}, (3, 4)),
        ({"LOCAL_RANK": "3", "LOCAL_WORLD_SIZE": "4", "NODE_RANK": "1"}, (7, None)),
        ({"LOCAL_RANK": "3", "WORLD_SIZE": "8", "NODE_RANK": "1"}, (None, 8)),
        ({"RANK": "²", "LOCAL_RANK": "1"}, (1, None)),
    ],
)
def test_the_launchers_variables_show_it(environ: dict[str, str], expected: tuple[int | None, int | None]):
    assert process_rank(environ, {}) == expected


def test_a_process_group_knows_better_than_variables():
    torch = SimpleNamespace(
        is_available=lambda: True,
        is_initialized=lambda: True,
        get_rank=lambda: 6,
        get_world_size=lambda: 8,
    )
    assert process_rank({"LOCAL_RANK": "2"}, {"torch.distributed": torch}) == (6, 8)
    torch.is_initialized = lambda: False
    assert process_rank({"LOCAL_RANK": "2"}, {"torch.distributed": torch}) == (2, None)


def test_jax_is_asked_only_where_it_is_distributed():
    def asked() -> int:
        raise AssertionError("this would start the backends")

    jax = SimpleNamespace(
        distributed=SimpleNamespace(is_initialized=lambda: False), process_index=asked, process_count=asked
    )
    assert process_rank({"LOCAL_RANK": "2"}, {"jax": jax}) == (2, None)
    jax.distributed.is_initialized = lambda: True
    jax.process_index, jax.process_count = (lambda: 1), (lambda: 2)
    assert process_rank({}, {"jax": jax}) == (1, 2)

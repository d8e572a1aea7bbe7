"""What a collective takes at least, as `perfd collective` and the tables of traces show it."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfd.analysis.operations.least_time import OPERATIONS, least_time
from perfd.cli import main
from perfd.errors import PerfdError


def test_an_all_reduce_of_a_gigabyte_over_nvlink(capsys):
    assert main(["collective", "--all-reduce", "1GB", "--ranks", "8", "--gpu", "H100", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["schema"] == "perfd.collective/1"
    assert found["minimum_s"] == pytest.approx(2 * 7 / 8 * 1e9 / 450e9)
    assert found["bus_factor"] == 1.75


def test_a_reduce_scatter_of_many_ranks_moves_its_message_once(capsys):
    assert (
        main(["collective", "--reduce-scatter", "128MB", "--bandwidth", "120GB/s", "--time", "1.13e-3"]) == 0
    )
    said = " ".join(capsys.readouterr().out.split())
    assert "at least 1.07 ms" in said
    assert "of the link 94.4%" in said


def test_bandwidths_of_a_measured_time_are_those_of_nccl_tests():
    found = least_time("AllReduce", 1e9, 8, 450e9, 5e-3)
    assert found.algorithm_bytes_per_s == pytest.approx(200e9)
    assert found.bus_bytes_per_s == pytest.approx(350e9)
    assert found.link_ratio == pytest.approx(350 / 450)


@given(st.sampled_from(OPERATIONS), st.floats(1, 1e15), st.integers(2, 10**6), st.floats(1, 1e13))
def test_more_ranks_never_need_less_than_fewer_and_never_more_than_many(operation, size, ranks, link):
    some, more, many = (least_time(operation, size, count, link) for count in (ranks, ranks + 1, None))
    assert some.minimum_s <= more.minimum_s * (1 + 1e-12)
    assert more.minimum_s <= many.minimum_s * (1 + 1e-12)


@pytest.mark.parametrize(("size", "ranks", "link"), [(0.0, 8, 1e9), (1e9, 1, 1e9), (1e9, 8, 0.0)])
def test_what_cannot_be_is_refused(size, ranks, link):
    with pytest.raises(PerfdError, match="at least 2 ranks"):
        least_time("AllReduce", size, ranks, link)


@pytest.mark.parametrize("gpu", ["Bare", "Voodoo"])
def test_a_gpu_without_a_known_link_needs_a_bandwidth(gpu, tmp_path, capsys):
    peaks = tmp_path / "peaks.yaml"
    row = "{name: Bare, match: [Bare], flops: {bf16: 1.0e+15}, source: own, date: '2026-01-01'}"
    peaks.write_text(f"gpus:\n  - {row}\n", encoding="utf-8")
    command = ["collective", "--all-reduce", "1GB", "--ranks", "2", "--gpu", gpu, "--peaks", str(peaks)]
    assert main(command) == 2
    assert "--bandwidth" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("gpu", "link"),
    [
        ("L4", "32.0 GB/s (L4, PCIe)"),
        ("A30", "100.0 GB/s (A30, unverified)"),
        ("H100", "450.0 GB/s (H100 SXM)"),
    ],
)
def test_the_link_is_nvlink_else_pcie_and_says_what_no_source_confirms(gpu, link, capsys):
    command = ["collective", "--all-reduce", "1GB", "--ranks", "2", "--gpu", gpu]
    assert main(command) == 0
    assert link in capsys.readouterr().out
    assert main([*command, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["link_source"] == link.partition("(")[2][:-1]


def test_a_size_that_is_none_is_refused(capsys):
    with pytest.raises(SystemExit):
        main(["collective", "--all-reduce", "much"])
    assert "is not a size" in capsys.readouterr().err

"""Versions by what a process has mapped."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from perfd_collectors.software import driver_version, package_folders, versions

SITE = "/venv/lib/python3.11/site-packages"
INSTALLED = [
    "torch", "torch-2.4.0+cu124.dist-info", "nvidia_nccl_cu12-2.20.5.dist-info", "__pycache__",
    "megatron_core-0.8.0.dist-info", "nvidia_cuda_runtime_cu12-12.4.127.dist-info", "torch-.dist-info",
    "numpy-1.26.4.dist-info",
]  # fmt: skip


def mapped(*files: str) -> str:
    return "".join(f"7f0a00000000-7f0a00001000 r-xp 00000000 08:01 131 {' ' * 20}{file}\n" for file in files)


def test_a_wheels_libraries_have_the_versions_of_their_packages() -> None:
    maps = mapped(
        "/venv/bin/python3.11",
        f"{SITE}/torch/lib/libtorch_cuda.so",
        f"{SITE}/nvidia/nccl/lib/libnccl.so.2",
        f"{SITE}/nvidia/cuda_runtime/lib/libcudart.so.12",
        "/usr/lib/x86_64-linux-gnu/libcuda.so.550.54.15",
        "[heap]",
    )

    assert package_folders(maps) == [SITE]
    assert versions(maps, INSTALLED) == {
        "CUDA runtime": "12.4.127", "Megatron Core": "0.8.0", "NCCL": "2.20.5", "NVIDIA driver": "550.54.15",
        "Python": "3.11", "PyTorch": "2.4.0+cu124",
    }  # fmt: skip


def test_a_library_of_the_system_has_its_version_in_its_name() -> None:
    """It wins over the package, which then is not what is used."""
    maps = mapped("/usr/lib/x86_64-linux-gnu/libnccl.so.2.21.5", "/usr/local/cuda/lib64/libcudart.so.12.6.77")

    assert versions(maps, INSTALLED) == {
        "CUDA runtime": "12.6.77", "Megatron Core": "0.8.0", "NCCL": "2.21.5", "PyTorch": "2.4.0+cu124",
    }  # fmt: skip


def test_what_is_not_mapped_is_not_claimed() -> None:
    found = versions(mapped(f"{SITE}/torch/lib/libtorch_cpu.so"), INSTALLED)

    assert "NCCL" not in found
    assert "CUDA runtime" not in found


@pytest.mark.parametrize(
    "installed",
    [
        [],
        ["nvidia_nccl_cu11-2.19.3.dist-info", "nvidia_nccl_cu12-2.20.5.dist-info"],
        ["nccl-2.20.5.dist-info"],
    ],
)
def test_a_version_that_cannot_be_known_is_left_out(installed: list[str]) -> None:
    assert "NCCL" not in versions(mapped(f"{SITE}/nvidia/nccl/lib/libnccl.so.2"), installed)
    # A package says nothing of a library that is not in it.
    assert "NCCL" not in versions(mapped("/opt/conda/lib/libnccl.so.2"), INSTALLED)


@pytest.mark.parametrize(
    ("text", "version"),
    [
        (
            "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5 22:23:56 UTC 2024\n",
            "550.54.15",
        ),
        ("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.10  Release Build\n", "570.86.10"),
        ("NVRM version: NVIDIA UNIX Open Kernel Module for aarch64  575.57  Release Build\n", "575.57"),
        ("GCC version:  gcc version 12.3.0 (Ubuntu 12.3.0-1ubuntu1~22.04)\n", None),
        ("", None),
    ],
)
def test_the_drivers_version_is_that_of_its_module(text: str, version: str | None) -> None:
    assert driver_version(text) == version


def test_what_users_name_their_files_stays_short_and_harmless() -> None:
    names = [f"torch-1{'9' * 1000}.dist-info", "jax-<script>.dist-info", "triton-1 2.dist-info"]

    assert versions("", names) == {}


@given(st.text(), st.lists(st.text(), max_size=5))
def test_any_text_is_read(maps: str, names: list[str]) -> None:
    for name, version in versions(maps, names).items():
        assert name
        assert 0 < len(version) <= 64
    assert len(package_folders(maps)) <= 4
    driver_version(maps)

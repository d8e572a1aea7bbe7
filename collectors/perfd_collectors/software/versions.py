"""Versions from the list of files that a process has mapped, and the names of installed packages: pure.

The version of a library is in the name of its file (`libnccl.so.2.21.5`), or in that of the Python package
that it came with (`nvidia_nccl_cu12-2.21.5.dist-info`). No file is opened for it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import PurePosixPath

_VERSION = r"[0-9][A-Za-z0-9.+!_]{0,63}"
_PACKAGES = ("/site-packages/", "/dist-packages/")
_MOST_FOLDERS = 4
"""Most site-packages folders per process, which has one or two."""
_INSTALLED = re.compile(rf"([A-Za-z0-9._-]{{1,100}}?)-({_VERSION})\.(?:dist|egg)-info")
_PYTHON = re.compile(r"/(?:lib/|lib)python(3\.\d{1,3})(?:[./t]|$)", re.MULTILINE)
_DRIVER = re.compile(r"Kernel Module\D{0,40}?\s(?:x86_64\s+|aarch64\s+)?(\d{3,4}\.\d+(?:\.\d+)?)\s")

# What is shown, by the name of the package in lower case with `-`.
_FRAMEWORKS = {
    "torch": "PyTorch", "jax": "JAX", "jaxlib": "jaxlib", "tensorflow": "TensorFlow",
    "paddlepaddle-gpu": "PaddlePaddle", "megatron-core": "Megatron Core", "deepspeed": "DeepSpeed",
    "transformers": "Transformers", "accelerate": "Accelerate", "lightning": "Lightning",
    "pytorch-lightning": "PyTorch Lightning", "mosaicml": "Composer", "torchtitan": "TorchTitan",
    "transformer-engine": "Transformer Engine", "flash-attn": "FlashAttention", "xformers": "xFormers",
    "triton": "Triton", "ray": "Ray", "vllm": "vLLM", "sglang": "SGLang",
}  # fmt: skip
# What is shown, and the package that brings it, by the name of the library.
_LIBRARIES = {
    "libnccl": ("NCCL", "nvidia-nccl"),
    "libcudart": ("CUDA runtime", "nvidia-cuda-runtime"),
    "libcudnn": ("cuDNN", "nvidia-cudnn"),
    "libcublas": ("cuBLAS", "nvidia-cublas"),
}
_LIBRARY = re.compile(r"(libnccl|libcudart|libcudnn|libcublas)(?:-[0-9a-f]{1,64})?\.so([.0-9]{0,64})")
_DRIVER_LIBRARY = re.compile(r"/libcuda\.so\.(\d{3,4}\.\d+(?:\.\d+)?)$", re.MULTILINE)


def package_folders(maps: str) -> list[str]:
    """The folders of Python packages from which something is mapped; `maps` is `/proc/PID/maps`."""
    parts = [path.partition(packages) for path in _paths(maps) for packages in _PACKAGES]
    return list(dict.fromkeys(f"{folder}{name[:-1]}" for folder, name, _ in parts if name))[:_MOST_FOLDERS]


def _paths(maps: str) -> list[str]:
    """The paths of mapped files."""
    return [line[line.index("/") :] for line in maps.splitlines() if "/" in line]


def versions(maps: str, installed: Iterable[str]) -> Mapping[str, str]:
    """Version by name, of what the process uses.

    `installed` are the names of files in its `package_folders`. Of a library that is not mapped, nothing is
    said, and of one whose version neither names.
    """
    packages = {
        found[1].lower().replace("_", "-").replace(".", "-"): found[2]
        for name in installed
        if (found := _INSTALLED.fullmatch(name))
    }
    known = {title: packages[name] for name, title in _FRAMEWORKS.items() if name in packages}
    for path in map(PurePosixPath, dict.fromkeys(_paths(maps))):
        found = _LIBRARY.fullmatch(path.name)
        if found is None:
            continue
        title, package = _LIBRARIES[found[1]]
        version = _of_library(found[2].strip("."), path.parent, package, packages)
        if version is not None:
            known[title] = version
    for title, pattern in (("Python", _PYTHON), ("NVIDIA driver", _DRIVER_LIBRARY)):
        if found := pattern.search(maps):
            known[title] = found[1]
    return dict(sorted(known.items(), key=lambda one: one[0].lower()))


def driver_version(text: str) -> str | None:
    """The version in `/proc/driver/nvidia/version`."""
    found = _DRIVER.search(f"{text}\n")
    return found[1] if found else None


def _of_library(number: str, folder: PurePosixPath, package: str, packages: Mapping[str, str]) -> str | None:
    if number.count(".") >= 2:
        return number
    if "nvidia" not in folder.parts:
        return None
    # A suffix is the major version of CUDA; of two such packages it is unknown which is mapped.
    found = [version for name, version in packages.items() if re.fullmatch(rf"{package}(-cu\d+)?", name)]
    return found[0] if len(found) == 1 else None

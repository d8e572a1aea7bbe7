"""What this node's NVML cannot tell, in sentences: `perfd doctor` prints them."""

from __future__ import annotations

from collections.abc import Sequence

from perfd.errors import Unavailable
from perfd_collectors.nvml.columns import GPM_METRICS
from perfd_collectors.nvml.gpm import GpmRequests, open_gpm
from perfd_collectors.nvml.library import Nvml, NvmlError, error_code, load, start
from perfd_collectors.nvml.topology import describe, targets_of


def limitations(nvml: Nvml | None = None) -> Sequence[str]:
    """One sentence for each thing that the `nvml` collector will miss on this node, if any."""
    nvml = nvml or load()
    try:
        start(nvml)
    except Unavailable as error:
        return [str(error)]
    try:
        return [
            sentence
            for index in range(nvml.nvmlDeviceGetCount())
            for sentence in _limitations_of(nvml, index)
        ]
    finally:
        nvml.nvmlShutdown()


def _limitations_of(nvml: Nvml, index: int) -> list[str]:
    try:
        targets = targets_of(nvml, index)
        name = describe(nvml, targets[0]).name
    except NvmlError as error:
        return [f"GPU {index} cannot be read (NVML return code {error_code(error)}): see `nvidia-smi`."]
    found = []
    gpm = open_gpm(nvml, targets[0], GpmRequests())
    if gpm is None:
        names = ", ".join(metric.column for metric in GPM_METRICS)
        found.append(
            f"GPU {index} ({name}) has no GPM, which needs Hopper or later and a driver of 525 or later: "
            f"{names} are absent, and busy_ratio is the only activity."
        )
    else:
        gpm.close()
    if len(targets) > 1:
        found.append(
            f"GPU {index} ({name}) is in MIG mode: its slices have GPM and memory only, power and clocks are "
            "those of the whole GPU, and busy_ratio is absent."
        )
    return found

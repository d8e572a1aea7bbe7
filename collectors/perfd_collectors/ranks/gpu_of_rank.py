"""The GPU of a rank: by the memory it holds, or by its visible devices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from perfd_collectors.ranks.environment import RankIdentity


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """A GPU of the node with its NVML index."""

    index: int
    name: str
    uuid: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldMemory:
    """A process with a compute context on a GPU, as listed by NVML."""

    pid: int
    gpu: int
    memory_bytes: int | None
    """None when the driver does not report it."""


def gpu_held(held: Sequence[HeldMemory], expected: int | None) -> int | None:
    """The GPU that a process uses, of all on which it holds memory; None when ambiguous.

    A rank may hold some memory on other ranks' GPUs (peer access, a checkpoint
    loaded to `cuda:0`): its own is the one with the most.
    """
    gpus = {entry.gpu for entry in held}
    if len(gpus) <= 1:
        return next(iter(gpus), None)
    totals = {gpu: _total(held, gpu) for gpu in gpus}
    known = sorted((total for total in totals.values() if total is not None), reverse=True)
    if len(known) == len(totals) and known[0] > known[1]:
        return next(gpu for gpu, total in totals.items() if total == known[0])
    return expected if expected in gpus else None


def gpu_expected(identity: RankIdentity, gpus: Sequence[Gpu], *, same_container: bool) -> int | None:
    """The GPU that a rank must use according to its visible devices; None when ambiguous.

    It is known for a rank with one visible device, and for as many local ranks as
    devices, by the convention that each uses the device of its local rank.
    `same_container`: the rank's devices have the same indices as ours.
    """
    devices = _visible(identity.environ, gpus, numbered_alike=same_container or identity.container_id is None)
    if devices is None or any(device is None for device in devices):
        return None
    if len(devices) == 1:
        return devices[0]
    if identity.local_rank is not None and identity.local_world_size == len(devices):
        return devices[identity.local_rank] if identity.local_rank < len(devices) else None
    return None


def _total(held: Sequence[HeldMemory], gpu: int) -> int | None:
    sizes = [entry.memory_bytes for entry in held if entry.gpu == gpu]
    return None if None in sizes else sum(size for size in sizes if size is not None)


def _visible(
    environ: Mapping[str, str], gpus: Sequence[Gpu], *, numbered_alike: bool
) -> list[int | None] | None:
    """A process's CUDA devices in CUDA's order, as NVML indices; None when unknown."""
    mask = environ.get("CUDA_VISIBLE_DEVICES")
    base = _container_devices(environ, gpus, numbered_alike=numbered_alike)
    if mask is None:
        return list(base) if base is not None and _one_order(environ, gpus) else None
    devices: list[int | None] = []
    for token in mask.split(","):
        text = token.strip()
        if text.isascii() and text.isdigit():
            number = int(text)
            in_order = base is not None and _one_order(environ, gpus) and number < len(base)
            devices.append(base[number] if base is not None and in_order else None)
        elif text.startswith("GPU-"):
            devices.append(_by_uuid(text, gpus))
        else:
            # CUDA ignores everything after an invalid entry; a MIG device is not a whole GPU.
            break
    return devices or None


def _container_devices(
    environ: Mapping[str, str], gpus: Sequence[Gpu], *, numbered_alike: bool
) -> list[int] | None:
    """The devices of the rank's container, in its order."""
    if not gpus:
        return None
    given = environ.get("NVIDIA_VISIBLE_DEVICES", "")
    if numbered_alike or given == "all":
        return [gpu.index for gpu in gpus]
    found = [_by_uuid(token.strip(), gpus) for token in given.split(",") if token.strip().startswith("GPU-")]
    # Regardless of their order here, a container numbers its devices by PCI address, as NVML does.
    return sorted(device for device in found if device is not None) if found and None not in found else None


def _one_order(environ: Mapping[str, str], gpus: Sequence[Gpu]) -> bool:
    """Whether CUDA numbers devices as NVML does: by default, it puts faster ones first."""
    return environ.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID" or len({gpu.name for gpu in gpus}) == 1


def _by_uuid(text: str, gpus: Sequence[Gpu]) -> int | None:
    """The device with a UUID prefix, which must be unique, as in CUDA; else None."""
    found = [gpu.index for gpu in gpus if gpu.uuid is not None and gpu.uuid.startswith(text)]
    return found[0] if len(found) == 1 else None

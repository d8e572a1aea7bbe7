"""Which GPU a rank uses: by who holds memory on it, or by the devices that the rank may see."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from perfd_collectors.ranks.environment import RankIdentity


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """A GPU of the node, as NVML numbers it."""

    index: int
    name: str
    uuid: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldMemory:
    """A process that holds a compute context on a GPU, as NVML lists it."""

    pid: int
    gpu: int
    memory_bytes: int | None
    """None where the driver does not tell."""


def gpu_held(held: Sequence[HeldMemory], expected: int | None) -> int | None:
    """The GPU that one process uses, out of all that it holds; None when that is not certain.

    A rank may hold a little on GPUs of others too (peer access, a checkpoint
    loaded to `cuda:0`): its own is where it holds most.
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
    """The GPU that a rank must be using by what it may see, or None when it could be another.

    Certain is a rank that sees one device, and one of as many ranks as there
    are devices, by the convention that each takes the device of its local rank.
    `same_container` says that the rank's devices are numbered as ours are.
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
    """CUDA's devices of a process in CUDA's order, as NVML indices; None when they are not known."""
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
            # CUDA ignores what follows an invalid entry; a MIG device is no whole GPU.
            break
    return devices or None


def _container_devices(
    environ: Mapping[str, str], gpus: Sequence[Gpu], *, numbered_alike: bool
) -> list[int] | None:
    """The devices that the rank's container has, in their order there."""
    if not gpus:
        return None
    given = environ.get("NVIDIA_VISIBLE_DEVICES", "")
    if numbered_alike or given == "all":
        return [gpu.index for gpu in gpus]
    found = [_by_uuid(token.strip(), gpus) for token in given.split(",") if token.strip().startswith("GPU-")]
    # However they are listed, a container numbers its devices by PCI address, as NVML does.
    return sorted(device for device in found if device is not None) if found and None not in found else None


def _one_order(environ: Mapping[str, str], gpus: Sequence[Gpu]) -> bool:
    """Whether CUDA numbers devices as NVML does: it puts faster ones first unless told otherwise."""
    return environ.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID" or len({gpu.name for gpu in gpus}) == 1


def _by_uuid(text: str, gpus: Sequence[Gpu]) -> int | None:
    """CUDA takes any prefix of a UUID that fits one device only."""
    found = [gpu.index for gpu in gpus if gpu.uuid is not None and gpu.uuid.startswith(text)]
    return found[0] if len(found) == 1 else None

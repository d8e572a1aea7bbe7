"""Which devices a collective of XLA's HLO joins, in each form in which its protobuf writes that.

(Source: openxla/xla, `xla_data.proto` and `hlo.proto`.)
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise, product
from math import prod
from typing import NamedTuple

from perfd.trace.readers.xplane.message_fields import fields, numbers, submessages

MAX_DEVICES = 1 << 16
"""Most devices in one collective, so that a hostile list is not expanded."""
_MAX_DIMENSIONS = 64
"""Most dimensions of a device mesh; real ones have fewer than ten."""
_Groups = list[tuple[int, ...]]
_REPLICA_GROUPS, _IOTA = 1, 2
"""Fields of a CollectiveDeviceListProto."""
_MESH, _AXIS_REFERENCE = 1, 2
"""Fields of a MeshAxesReplicaGroupListProto."""


class _AxisReference(NamedTuple):
    """An axis of a mesh, or the part of it with `size` devices, each `stride` of the axis apart."""

    axis: int
    stride: int = 0
    size: int = 0
    """0 for the whole axis."""

    def steps(self, axis_size: int) -> range:
        """The steps between neighbors that it covers, in an axis of that size."""
        return range(self.stride, self.stride * self.size) if self.size else range(1, axis_size)


def listed(group: memoryview) -> tuple[int, ...]:
    """A ReplicaGroup: its members by number."""
    return tuple(one for number, value in fields(group) if number == 1 for one in numbers(value))


def of_device_list(message: memoryview) -> _Groups:
    """A CollectiveDeviceListProto: groups as lists, or as a permuted range of numbers.

    Raises `ValueError` for one that is none.
    """
    groups = []
    for number, part in submessages(message):
        if number == _REPLICA_GROUPS:
            groups.append(listed(part))
        elif number == _IOTA:
            return _iota(part)
    return groups


def of_mesh(message: memoryview) -> _Groups:
    """A MeshAxesReplicaGroupListProto: the devices of a mesh that differ only in some of its axes.

    Raises `ValueError` for one that is none.
    """
    sizes: list[int] = []
    devices: list[int] = []
    references: list[_AxisReference] = []
    for number, part in submessages(message):
        if number == _MESH:
            for of, value in fields(part):
                if of == 1 and not isinstance(value, int):
                    sizes.append(_number(value, 2))
                elif of == 2:
                    devices += numbers(value)
        elif number == _AXIS_REFERENCE:
            references.append(_axis_reference(part))
    if len(sizes) > _MAX_DIMENSIONS or len(references) > _MAX_DIMENSIONS:
        raise ValueError("a mesh of too many axes")
    if any(one.axis >= len(sizes) for one in references):
        raise ValueError("an axis that the mesh does not have")
    # An axis of which only a part is referenced is taken for several axes, of which that part is one.
    dimensions: list[int] = []
    place: dict[tuple[int, int], int] = {}
    """By axis and the steps between neighbors in it, the dimension."""
    for axis, size in enumerate(sizes):
        for small, big in pairwise(_cuts(size, [one for one in references if one.axis == axis])):
            place[axis, small] = len(dimensions)
            dimensions.append(big // small)
    grouped = [
        place[axis, small]
        for one in references
        for axis, small in sorted(place)
        if axis == one.axis and small in one.steps(sizes[axis])
    ]
    return _groups(dimensions, grouped, devices)


def _axis_reference(message: memoryview) -> _AxisReference:
    part = next((value for of, value in submessages(message) if of == 2), None)
    axis = _number(message, 1)
    return _AxisReference(axis, _number(part, 1), _number(part, 2)) if part else _AxisReference(axis)


def _cuts(size: int, references: Sequence[_AxisReference]) -> list[int]:
    """The strides at which an axis is cut; raises `ValueError` unless each divides the next."""
    parts = [one for one in references if one.size]
    cuts = sorted({1, size, *(cut for one in parts for cut in (one.stride, one.stride * one.size))})
    if any(small <= 0 or big % small for small, big in pairwise(cuts)):
        raise ValueError("parts of an axis do not divide it")
    return cuts


def _iota(message: memoryview) -> _Groups:
    """An IotaReplicaGroupListProto."""
    found: dict[int, list[int]] = {}
    for number, value in fields(message):
        found.setdefault(number, []).extend(numbers(value))
    count, size = (found.get(number, [0])[-1] for number in (1, 2))
    dimensions = found.get(3, [])
    if len(dimensions) > _MAX_DIMENSIONS:
        raise ValueError("replica groups of too many dimensions")
    order = found.get(4, []) or list(range(len(dimensions)))
    if (
        sorted(order) != list(range(len(dimensions)))
        or not 0 < count * size == prod(dimensions) <= MAX_DEVICES
    ):
        raise ValueError("replica groups that do not fit their dimensions")
    flat = _permuted(dimensions, order)
    return [tuple(flat[at : at + size]) for at in range(0, len(flat), size)]


def _groups(dimensions: Sequence[int], grouped: Sequence[int], devices: Sequence[int]) -> _Groups:
    if not 0 < prod(dimensions) <= MAX_DEVICES or len(set(grouped)) < len(grouped):
        raise ValueError("a mesh that is too large")
    if devices and len(devices) != prod(dimensions):
        raise ValueError("a mesh of other devices than it lists")
    others = [at for at in range(len(dimensions)) if at not in grouped]
    flat = _permuted(dimensions, [*others, *grouped])
    size = prod(dimensions[at] for at in grouped)
    named = [devices[at] for at in flat] if devices else flat
    return [tuple(named[at : at + size]) for at in range(0, len(named), size)]


def _permuted(dimensions: Sequence[int], order: Sequence[int]) -> list[int]:
    """0, 1, 2, ... in this shape, read with its dimensions in another order."""
    strides = [prod(dimensions[at + 1 :]) for at in range(len(dimensions))]
    steps = [[strides[at] * index for index in range(dimensions[at])] for at in order]
    return [sum(offsets) for offsets in product(*steps)]


def _number(message: memoryview | None, wanted: int) -> int:
    """A field that is a number; 0 if it is not written."""
    found = [value for number, value in fields(message or memoryview(b"")) if number == wanted]
    return next((value for value in reversed(found) if isinstance(value, int)), 0)

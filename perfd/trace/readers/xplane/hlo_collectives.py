"""The collectives of the HLO modules that XLA's profiler puts beside a trace, in the plane `/host:metadata`.

Of a module of a million instructions only collectives and what calls them are decoded.
(Source: openxla/xla, `hlo.proto`, `xla_data.proto`; fields of a trace by JAX 0.11.)
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import prod

from perfd.trace.readers.jax_collectives import HloCollective
from perfd.trace.readers.xplane.message_fields import fields, numbers, submessages
from perfd.trace.readers.xplane.replica_groups import MAX_DEVICES, listed, of_device_list, of_mesh

_PLANE, _PLANE_NAME, _EVENT_METADATA = 1, 2, 4
"""Fields of an XSpace and an XPlane (xplane.proto)."""
_METADATA_PLANE = b"/host:metadata"
_VALUE, _STATS, _STAT_BYTES, _HLO_MODULE = 2, 5, 6, 1
"""Fields of a map's entry, an XEventMetadata, an XStat and an HloProto (hlo.proto)."""
_MODULE_NAME, _COMPUTATION, _DEVICE_ASSIGNMENT = 1, 3, 15
"""Fields of an HloModuleProto."""
_INSTRUCTION, _COMPUTATION_ID = 2, 5
"""Fields of an HloComputationProto."""
_NAME, _OPCODE, _SHAPE, _CHANNEL, _CALLED, _GROUPS, _PAIRS = 1, 2, 3, 26, 38, 49, 52
"""Fields of an HloInstructionProto."""
_GLOBAL_IDS, _DEVICE_LIST, _MESH_AXES = 71, 87, 93
"""More of them: how groups of devices are written."""
_ELEMENT_TYPE, _DIMENSIONS, _PARTS = 2, 3, 4
"""Fields of a ShapeProto."""
_MENTIONS = re.compile(rb"all-(?:reduce|gather|to-all)|reduce-scatter|collective-(?:permute|broadcast)")
_COLLECTIVE = re.compile(
    r"(?:all-reduce|all-gather|reduce-scatter|(?:ragged-)?all-to-all|collective-(?:permute|broadcast))(-start)?$"
)
_PER_PARTITION = ("all-to-all", "ragged-all-to-all", "collective-")
"""With a channel and without global numbers, those of partitions count; of others those of replicas."""
_BITS = {
    **dict.fromkeys((1, 2, 6, 19, 20, 23, 24, 25, 28, 29), 8), **dict.fromkeys((3, 7, 10, 16), 16),
    **dict.fromkeys((4, 8, 11), 32), **dict.fromkeys((5, 9, 12, 15), 64), 18: 128,
    **dict.fromkeys((21, 22), 4),
}  # fmt: skip
"""Size of an element, by the number of XLA's primitive type."""
_MAX_SHAPES, _MAX_DIMENSIONS = 10_000, 64
"""Of an instruction; real ones have hundreds and about five. A damaged file can nest more."""


@dataclass(slots=True)
class _Instruction:
    name: str = ""
    opcode: str = ""
    shape: memoryview | None = None
    channel: int = 0
    global_ids: bool = False
    called: list[int] = field(default_factory=list)
    groups: list[tuple[int, ...]] = field(default_factory=list)
    pairs: list[tuple[int, int]] = field(default_factory=list)
    known: bool = True
    """Whether its groups are of a form that is read."""


@dataclass(frozen=True, slots=True)
class _Devices:
    """Which device runs which replica and partition of a module."""

    by_partition: Sequence[Sequence[int]]

    def of(self, instruction: _Instruction, members: tuple[int, ...]) -> tuple[int, ...] | None:
        """Devices of numbers as this instruction counts them; None if that is not known."""
        replicas, partitions = len(self.by_partition[0]), len(self.by_partition)
        flat = [ids[replica] for replica in range(replicas) for ids in self.by_partition]
        flattened = instruction.global_ids or partitions == 1
        if not flattened and replicas == 1:
            if not instruction.channel:
                return None
            if not instruction.opcode.startswith(_PER_PARTITION):
                # Groups of replicas over all partitions: all devices.
                return tuple(flat)
            flattened = True
        if not flattened or any(not 0 <= one < len(flat) for one in members):
            return None
        return tuple(flat[one] for one in members)


def read_collectives(space: memoryview) -> dict[tuple[str, str], HloCollective]:
    """By the name of the module and of the instruction, as events name them.

    What two modules of one name have differently is left out. Raises `ValueError` for a file that is cut.
    """
    found: dict[tuple[str, str], HloCollective] = {}
    contradicted = set()
    for module in _modules(space):
        name, collectives = _of_module(module)
        for instruction, one in collectives.items():
            if found.setdefault((name, instruction), one) != one:
                contradicted.add((name, instruction))
    return {key: one for key, one in found.items() if key not in contradicted}


def _modules(space: memoryview) -> Iterator[memoryview]:
    for number, plane in submessages(space):
        if number != _PLANE or (_PLANE_NAME, _METADATA_PLANE) not in _short(plane):
            continue
        for of, entry in submessages(plane):
            if of == _EVENT_METADATA:
                for stat in _within(entry, _VALUE, _STATS):
                    yield from _within(stat, _STAT_BYTES, _HLO_MODULE)


def _short(message: memoryview) -> Iterator[tuple[int, bytes]]:
    """Fields as short as a name."""
    return ((number, bytes(part)) for number, part in submessages(message) if len(part) <= 64)


def _within(message: memoryview, *path: int) -> Iterator[memoryview]:
    """Fields of fields, by their numbers from the outermost on."""
    for number, part in submessages(message):
        if number == path[0]:
            yield from (part,) if len(path) == 1 else _within(part, *path[1:])


def _of_module(module: memoryview) -> tuple[str, dict[str, HloCollective]]:
    name = ""
    devices: _Devices | None = None
    by_computation: dict[int, list[_Instruction]] = {}
    callers: list[_Instruction] = []
    for number, part in submessages(module):
        if number == _MODULE_NAME:
            name = bytes(part).decode("utf-8", "replace")
        elif number == _DEVICE_ASSIGNMENT:
            devices = _assignment(part)
        elif number == _COMPUTATION and _MENTIONS.search(part):
            identity = next((value for of, value in fields(part) if of == _COMPUTATION_ID), 0)
            for instruction in _instructions(part):
                if _COLLECTIVE.match(instruction.opcode):
                    by_computation.setdefault(int(identity) if isinstance(identity, int) else 0, []).append(
                        instruction
                    )
                elif instruction.called:
                    callers.append(instruction)
    if devices is None:
        return name, {}
    collectives = {
        one.name: described
        for ones in by_computation.values()
        for one in ones
        if (described := _described(one, devices)) is not None
    }
    for caller in callers:
        # The events of a fusion, and of an asynchronous start, have its name.
        inner = [one for called in caller.called for one in by_computation.get(called, ())]
        if len(inner) == 1 and inner[0].name in collectives:
            collectives.setdefault(caller.name, collectives[inner[0].name])
    return name, collectives


def _assignment(message: memoryview) -> _Devices | None:
    rows = [
        tuple(one for of, value in fields(part) if of == 1 for one in numbers(value))
        for number, part in submessages(message)
        if number == 3
    ]
    sizes = {len(row) for row in rows}
    if len(sizes) != 1 or not 0 < len(rows) * min(sizes) <= MAX_DEVICES:
        return None
    return _Devices(rows)


def _instructions(computation: memoryview) -> Iterator[_Instruction]:
    """Those that mention a collective; of others no events are looked for."""
    for number, part in submessages(computation):
        if number == _INSTRUCTION and _MENTIONS.search(part):
            yield _instruction(part)


def _instruction(message: memoryview) -> _Instruction:
    found = _Instruction()
    for number, value in fields(message):
        if number == _CALLED:
            found.called += numbers(value)
        elif isinstance(value, int):
            if number == _CHANNEL:
                found.channel = value
            elif number == _GLOBAL_IDS:
                found.global_ids = bool(value)
        elif number == _NAME:
            found.name = bytes(value).decode("utf-8", "replace")
        elif number == _OPCODE:
            found.opcode = bytes(value).decode("utf-8", "replace")
        elif number == _SHAPE:
            found.shape = value
        else:
            _take_groups(found, number, value)
    return found


def _take_groups(found: _Instruction, number: int, value: memoryview) -> None:
    try:
        if number == _GROUPS:
            found.groups.append(listed(value))
        elif number == _DEVICE_LIST:
            found.groups = of_device_list(value) or found.groups
        elif number == _MESH_AXES:
            found.groups = of_mesh(value)
        elif number == _PAIRS:
            pair = dict(fields(value))
            source, target = pair.get(1, 0), pair.get(2, 0)
            if isinstance(source, int) and isinstance(target, int):
                found.pairs.append((source, target))
    except ValueError:
        found.known = False


def _described(instruction: _Instruction, devices: _Devices) -> HloCollective | None:
    if not instruction.known:
        return None
    everyone = tuple(range(len(devices.by_partition) * len(devices.by_partition[0])))
    permutes = instruction.opcode.startswith("collective-permute")
    wanted = [] if permutes else [group for group in instruction.groups if group] or [everyone]
    groups = [devices.of(instruction, group) for group in wanted]
    pairs = [devices.of(instruction, pair) for pair in instruction.pairs]
    if None in groups or None in pairs:
        return None
    size_bytes, elements = _size(instruction, len(wanted[0]) if wanted else 1)
    return HloCollective(
        groups=tuple(tuple(sorted(group)) for group in groups if group),
        pairs=tuple((pair[0], pair[1]) for pair in pairs if pair),
        size_bytes=size_bytes,
        elements=elements,
    )


def _size(instruction: _Instruction, members: int) -> tuple[int | None, int | None]:
    """Bytes of the whole message, and its elements; None if a type is unknown."""
    if instruction.shape is None:
        return None, None
    shape = instruction.shape
    if instruction.opcode in {"all-gather-start", "collective-permute-start"}:
        # Its result is a tuple of what goes in, what comes out, and what it needs meanwhile.
        parts = [part for number, part in submessages(shape) if number == _PARTS]
        shape = parts[1] if len(parts) > 1 else shape
    arrays = list(_arrays(shape))
    factor = members if instruction.opcode.startswith("reduce-scatter") else 1
    elements = factor * sum(count for count, _ in arrays)
    if any(bits is None for _, bits in arrays) or elements >= 1 << 62:
        return None, None
    return factor * sum((count * (bits or 0) + 7) // 8 for count, bits in arrays), elements


def _arrays(shape: memoryview) -> Iterator[tuple[int, int | None]]:
    """Elements of each array of a shape, and the bits of one."""
    waiting = [shape]
    for _ in range(_MAX_SHAPES):
        if not waiting:
            return
        element = 0
        dimensions: list[int] = []
        parts: list[memoryview] = []
        for number, value in fields(waiting.pop()):
            if number == _ELEMENT_TYPE and isinstance(value, int):
                element = value
            elif number == _DIMENSIONS:
                dimensions += numbers(value)
            elif number == _PARTS and not isinstance(value, int):
                parts.append(value)
        if parts:
            waiting += parts
        elif len(dimensions) > _MAX_DIMENSIONS:
            raise ValueError("an array of too many dimensions")
        else:
            yield prod(dimensions), _BITS.get(element)

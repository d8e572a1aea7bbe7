"""Findings about a module's layouts and sharding, besides the least times of its operations."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from perfd.trace.roofline.hlo_line import ArrayShape, flops_of, product_of, shape_words
from perfd.trace.roofline.hlo_module import HloModule, Instruction

LAYOUT_CHANGE = "changes the layout"
"""The note on a copy that does nothing else."""
_SAME_VALUE = frozenset(
    {"bitcast", "convert", "copy", "get-tuple-element", "reshape", "transpose", "all-reduce-done"}
)
_REDUCING = frozenset({"all-reduce", "all-reduce-start", "reduce-scatter", "reduce-scatter-start"})
_GATHERING = frozenset({"all-gather", "all-gather-start", "all-gather-done"})
_HOPS, _MOST_NEIGHBORS = 2, 40
"""How far around an operation others are shown, and how many at most: about a screen. Chosen."""
_MOST_HOPS = 8
"""Through operations that only pass a value on, such as bitcasts, so that a cycle ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutCopy:
    """A copy that only changes the order of an array in memory."""

    name: str
    shape: str
    before: str
    after: str
    source: str
    """The operation whose result it copies."""
    readers: Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardedProduct:
    """A matrix product that is split over devices, as its operands or result show."""

    name: str
    shape: str
    """`bf16[4096] = bf16[4096,8192] x bf16[8192]`."""
    contracted: int
    """The size of the contracted dimension on one device."""
    reduced_over: int | None = None
    """Devices whose partial results are summed: the contracted dimension is split over them."""
    gathered_over: int | None = None
    """Devices from which a sharded operand is gathered each time."""

    @property
    def words(self) -> str:
        """The same as a sentence."""
        parts = [f"{self.name} ({self.shape})"]
        if self.reduced_over:
            whole = self.contracted * self.reduced_over
            parts.append(
                f"sums its results over {self.reduced_over} devices: the contracted dimension of"
                f" {self.contracted} is a shard of {whole}"
            )
        if self.gathered_over:
            parts.append(f"gathers an operand from {self.gathered_over} devices before each use")
        return f"{parts[0]} {' and '.join(parts[1:])}."


def order_words(shape: ArrayShape) -> str:
    """The order of an array's dimensions in memory, from the slowest to the fastest, and its tiles."""
    order = shape.layout or tuple(reversed(range(len(shape.sizes))))
    tiles = "".join(f"({','.join(map(str, tile))})" for tile in shape.tiles)
    words = ",".join(str(one) for one in order)
    return f"{{{words}{f':T{tiles}' if tiles else ''}}}"


def layout_copies(module: HloModule) -> list[LayoutCopy]:
    """A module's copies that only change a layout."""
    found = []
    for computation, instructions in module.computations.items():
        readers = _readers(instructions)
        for one in instructions.values():
            inputs = module.inputs(computation, one)
            if (
                one.operation == "copy"
                and inputs
                and one.outputs
                and inputs[0].layout != one.outputs[0].layout
            ):
                found.append(
                    LayoutCopy(
                        name=one.name,
                        shape=shape_words(one.outputs[0]),
                        before=order_words(inputs[0]),
                        after=order_words(one.outputs[0]),
                        source=one.operands[0][0],
                        readers=[reader.name for reader in readers.get(one.name, ())],
                    )
                )
    return found


def sharded_products(module: HloModule, group_size: Mapping[str, int | None]) -> list[ShardedProduct]:
    """Products whose results are summed over devices, or whose operands are gathered from them.

    `group_size` has the devices of each collective by its name.
    """
    found = []
    for computation, instructions in module.computations.items():
        readers = _readers(instructions)
        for one in instructions.values():
            product = _product(module, computation, one)
            if product is None:
                continue
            reduced = _first(
                group_size, (user.name for user in _users(readers, one.name) if user.operation in _REDUCING)
            )
            gathered = _first(
                group_size,
                (source.name for source in _sources(instructions, one) if source.operation in _GATHERING),
            )
            if reduced or gathered:
                left, right, contracted = product
                shape = f"{shape_words(one.outputs[0])} = {shape_words(left)} x {shape_words(right)}"
                found.append(
                    ShardedProduct(
                        name=one.name,
                        shape=shape,
                        contracted=contracted,
                        reduced_over=reduced,
                        gathered_over=gathered,
                    )
                )
    return found


def _product(
    module: HloModule, computation: str, one: Instruction
) -> tuple[ArrayShape, ArrayShape, int] | None:
    inputs = module.inputs(computation, one)
    if one.operation == "dot" and len(inputs) > 1 and one.outputs:
        depth = flops_of("dot", list(one.outputs), inputs, one.attributes) / max(
            1, 2 * one.outputs[0].elements
        )
        return inputs[0], inputs[1], round(depth)
    if one.operation not in {"custom-call", "fusion"} or not one.outputs:
        return None
    if one.operation == "fusion" and one.called in module.computations:
        inner = module.computations[one.called or ""]
        if not any(each.operation == "dot" for each in inner.values()):
            return None
    if one.operation == "custom-call" and "matmul" not in one.attributes and "gemm" not in one.attributes:
        return None
    found = product_of(one.outputs, inputs)
    return (found.left, found.right, found.contracted) if found else None


def _readers(instructions: Mapping[str, Instruction]) -> dict[str, list[Instruction]]:
    found: dict[str, list[Instruction]] = {}
    for one in instructions.values():
        for name, _ in one.operands:
            found.setdefault(name, []).append(one)
    return found


def _users(readers: Mapping[str, Sequence[Instruction]], name: str, hops: int = 0) -> Iterator[Instruction]:
    """The readers of a value, through operations that do not change it."""
    for reader in readers.get(name, ()):
        if reader.operation in _SAME_VALUE and hops < _MOST_HOPS:
            yield from _users(readers, reader.name, hops + 1)
        else:
            yield reader


def _sources(
    instructions: Mapping[str, Instruction], one: Instruction, hops: int = 0
) -> Iterator[Instruction]:
    for name, _ in one.operands:
        source = instructions.get(name)
        if source is None:
            continue
        if source.operation in _SAME_VALUE and hops < _MOST_HOPS:
            yield from _sources(instructions, source, hops + 1)
        else:
            yield source


def _first(sizes: Mapping[str, int | None], names: Iterator[str]) -> int | None:
    return next((size for name in names if (size := sizes.get(name)) and size > 1), None)


def neighbors(instructions: Mapping[str, Instruction], name: str) -> dict[str, int]:
    """Operations by distance from one: negative for its operands, positive for its readers."""
    readers = _readers(instructions)
    levels = {name: 0}
    for sign in (-1, 1):
        border = [name]
        for hop in range(1, _HOPS + 1):
            beyond = [
                other
                for one in border
                for other in (
                    (source for source, _ in instructions[one].operands)
                    if sign < 0
                    else (reader.name for reader in readers.get(one, ()))
                )
                if other in instructions and other not in levels
            ]
            border = list(dict.fromkeys(beyond))[: max(0, _MOST_NEIGHBORS - len(levels))]
            levels |= dict.fromkeys(border, sign * hop)
    return levels

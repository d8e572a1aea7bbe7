"""What each operation of an HLO module does at least: arithmetic, bytes, and messages between devices.

A fusion moves its outer operands and results once, and computes what is inside. What a fusion only slices is
read by the slice, what it updates in place is written by the update. Arrays in memory space 1 (`S(1)`) are on
the chip.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from perfd.analysis.operations.least_time import least_time
from perfd.errors import PerfdError
from perfd.trace.roofline.hlo_findings import LAYOUT_CHANGE
from perfd.trace.roofline.hlo_line import (
    MATRIX_OPERATIONS,
    ArrayShape,
    flops_of,
    product_of,
    product_precision,
)
from perfd.trace.roofline.hlo_module import HloModule, Instruction
from perfd.trace.roofline.roofline_model import bytes_of, matmul_precision, vector_precision

_FREE = frozenset(
    {
        "parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all", "partition-id",
        "replica-id",
        "async-update", "opt-barrier", "iota", "domain", "add-dependency",
    }
)  # fmt: skip
"""Operations that take no time, beside the ends of asynchronous ones (`..._DONE`)."""
_DONE, _START = "-done", "-start"
_COLLECTIVES = {
    "all-reduce": "AllReduce", "all-gather": "AllGather", "reduce-scatter": "ReduceScatter",
    "all-to-all": "AlltoAll", "ragged-all-to-all": "AlltoAll", "collective-permute": "Broadcast",
    "collective-broadcast": "Broadcast",
}  # fmt: skip
_SLICES = frozenset({"dynamic-slice", "slice", "gather"})
_GROUPS = re.compile(r"replica_groups=\{\{([\d,]{0,200000})\}")
_IOTA_GROUPS = re.compile(r"replica_groups=\[\d{1,9},(\d{1,9})\]<=")
_MESH = re.compile(r"replica_groups=mesh\[([^\[\]]{0,500})\] ?\{([^{}]{0,500})\}")
_AXIS = re.compile(r"'([^']{1,60})'=(\d{1,9})")
_GEMM_CONTRACTING = re.compile(r'"lhs_contracting_dimensions":\[((?:"\d{1,3}",?){0,8})\]')
_TARGET = re.compile(r'custom_call_target="([^"]{1,200})"')
_MOST_DEPTH = 64
"""Of computations that call each other: Python's stack is not endless."""
UNKNOWN_WORK = "what it computes is unknown: only its bytes count"
"""The note of a kernel that another library brings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HloCost:
    """One operation of a module, over all its runs in a step."""

    name: str
    operation: str
    """As HLO calls it; of a custom call its target."""
    count: int
    flops: float
    """Of one run; so the next."""
    traffic_bytes: float
    message_bytes: float
    """What it sends to other devices: the whole message."""
    group_size: int | None
    precision: str
    note: str = ""

    def minimum_s(
        self, peak_flops_per_s: float, memory_bytes_per_s: float, link_bytes_per_s: float | None
    ) -> float:
        """All runs, no faster than this; 0 for messages over a link of unknown speed."""
        if self.message_bytes:
            if link_bytes_per_s is None or (self.group_size or 0) < 2:
                return 0.0
            operation = _COLLECTIVES[self.operation.removesuffix("-start")]
            return (
                self.count
                * least_time(operation, self.message_bytes, self.group_size, link_bytes_per_s).minimum_s
            )
        return self.count * max(self.flops / peak_flops_per_s, self.traffic_bytes / memory_bytes_per_s)


def hlo_costs(module: HloModule) -> list[HloCost]:
    """The operations of a step that take time, in order; bodies of loops as often as they run."""
    return list(_walk(module, module.entry, 1, 0))


def is_free(operation: str) -> bool:
    """Whether an operation takes no time by itself."""
    return operation in _FREE or operation.endswith(_DONE)


def _results(instruction: Instruction, inputs: Sequence[ArrayShape]) -> Sequence[ArrayShape]:
    """What an operation writes. The beginning of an asynchronous one repeats its operands, with a context."""
    outputs = instruction.outputs
    if instruction.operation == "copy-start":
        return outputs[:1]
    if not instruction.operation.endswith(_START):
        return outputs
    own = outputs[len(inputs) :]
    return tuple(shape for shape in own if shape.sizes or shape.dtype != "u32") or outputs


def _walk(module: HloModule, computation: str, count: int, depth: int) -> Iterator[HloCost]:
    if depth > _MOST_DEPTH or computation not in module.computations:
        return
    for instruction in module.computations[computation].values():
        operation = instruction.operation
        if is_free(operation):
            continue
        if loop := instruction.loop:
            body, trips = loop
            yield from _walk(module, body, count * (trips or 1), depth + 1)
        elif operation in {"call", "async-start"} and instruction.called:
            yield from _walk(module, instruction.called, count, depth + 1)
        else:
            yield instruction_cost(module, computation, instruction, count)


def instruction_cost(
    module: HloModule, computation: str, instruction: Instruction, count: int = 1
) -> HloCost:
    """What one operation computes, moves and sends; of a loop or a call nothing of what it calls."""
    inputs = module.inputs(computation, instruction)
    outputs = _results(instruction, inputs)
    operation = instruction.operation.removesuffix(_START)
    flops, note, precision, message = 0.0, "", "fp32", 0.0
    traffic = _bytes(outputs) + _bytes(inputs)
    group = None
    if operation in _COLLECTIVES:
        group = _group_size(instruction.attributes)
        sizes = [shape.size_bytes for shape in (*inputs, *instruction.outputs)]
        message = max(sum(shape.size_bytes for shape in inputs), max(sizes, default=0.0))
        traffic = 0.0
    elif operation == "fusion" and instruction.called in module.computations:
        inner = module.computations[instruction.called or ""]
        flops, precision = _inner_flops(module, instruction.called or "", 0)
        traffic = _fusion_bytes(inner, outputs, inputs)
    elif operation == "fusion" and (collective := _fused_collective(instruction.called)):
        # Fused, as on TPUs: a reduction of which each device keeps its part.
        operation = collective
        message, traffic = sum(shape.size_bytes for shape in inputs), 0.0
        whole, part = (sum(shape.elements for shape in found) for found in (inputs, outputs))
        group = round(whole / part) if part else None
    elif operation == "fusion" and (product := product_of(outputs, inputs)):
        flops, precision = 2.0 * product.work, matmul_precision(product.left.dtype)
        note = f"taken for a product that contracts {product.contracted}"
    elif operation == "custom-call":
        target = _TARGET.search(instruction.attributes)
        operation = target[1] if target else operation
        flops, precision, known = _custom_flops(instruction, inputs)
        if known:
            # The second result is workspace.
            traffic = _bytes(inputs) + _bytes(outputs[:1])
        else:
            note = UNKNOWN_WORK
    else:
        flops, precision, note = _plain_flops(instruction, inputs)
        if operation == "copy" and inputs and outputs and inputs[0].layout != outputs[0].layout:
            note = LAYOUT_CHANGE
    padded = [
        shape for shape in (*inputs, *outputs) if shape.elements and shape.padded_elements > shape.elements
    ]
    if padded and not note:
        worst = max(padded, key=lambda shape: shape.padded_elements / shape.elements)
        note = f"tiling pads {worst.padded_elements / worst.elements:.2f} times"
    return HloCost(
        name=instruction.name,
        operation=operation,
        count=count,
        flops=flops,
        traffic_bytes=traffic,
        message_bytes=message,
        group_size=group,
        precision=precision,
        note=note,
    )


def _fused_collective(called: str | None) -> str | None:
    """The collective whose name a fused computation has: `all-reduce-scatter.3`."""
    name = (called or "").replace("all-reduce-scatter", "reduce-scatter")
    return next((one for one in _COLLECTIVES if name.startswith(one)), None)


def _bytes(found: Iterable[ArrayShape]) -> float:
    """In the device's main memory."""
    return sum(_size(shape) for shape in found if not shape.memory_space)


def _size(shape: ArrayShape) -> float:
    try:
        bytes_of(shape.dtype)
    except PerfdError:
        # Tokens and opaque values.
        return 0.0
    return shape.size_bytes


def _plain_flops(instruction: Instruction, inputs: list[ArrayShape]) -> tuple[float, str, str]:
    matrix = instruction.operation in MATRIX_OPERATIONS
    try:
        flops = flops_of(instruction.operation, list(instruction.outputs), inputs, instruction.attributes)
        dtype = inputs[0].dtype if inputs else "f32"
        precision = product_precision(dtype, instruction.attributes) if matrix else vector_precision(dtype)
    except (PerfdError, ValueError, IndexError):
        return 0.0, "fp32", "its arithmetic is unknown: only its bytes count"
    return flops, precision, ""


def _inner_flops(module: HloModule, computation: str, depth: int) -> tuple[float, str]:
    """Arithmetic of a fusion; the precision is that of its matrix products, if it has any."""
    if computation in module.fused_work:
        return module.fused_work[computation]
    total, matrix = 0.0, ""
    for instruction in module.computations.get(computation, {}).values() if depth < _MOST_DEPTH else ():
        if is_free(instruction.operation):
            continue
        if instruction.operation == "fusion" and instruction.called:
            flops, precision = _inner_flops(module, instruction.called, depth + 1)
            matrix = matrix or (precision if precision != "fp32" else "")
        else:
            flops, precision, _ = _plain_flops(instruction, module.inputs(computation, instruction))
            matrix = precision if instruction.operation in MATRIX_OPERATIONS else matrix
        total += flops
    module.fused_work[computation] = total, matrix or "fp32"
    return module.fused_work[computation]


def _fusion_bytes(
    inner: Mapping[str, Instruction], outputs: Sequence[ArrayShape], inputs: list[ArrayShape]
) -> float:
    """Operands and results, less what it only slices or updates in place."""
    read = 0.0
    updated = _updates(inner)
    parameters = [one for one in inner.values() if one.operation == "parameter"]
    for parameter in parameters:
        users = _users(inner, parameter.name)
        if users and all(user.operation in _SLICES and at == 0 for user, at in users):
            read += sum(_bytes(user.outputs) for user, _ in users)
        elif users and all(user.operation == "dynamic-update-slice" and at == 0 for user, at in users):
            continue
        else:
            read += _bytes(parameter.outputs)
    if not parameters:
        read = _bytes(inputs)
    return read + (updated if updated is not None else _bytes(outputs))


def _updates(inner: Mapping[str, Instruction]) -> float | None:
    """What a fusion writes whose result is an update in place."""
    root = next((one for one in inner.values() if one.root), None)
    while root is not None and root.operation == "bitcast" and root.operands:
        root = inner.get(root.operands[0][0])
    if root is None or root.operation != "dynamic-update-slice" or len(root.operands) < 2:
        return None
    update = inner.get(root.operands[1][0])
    return _bytes(update.outputs) if update is not None else None


def _users(inner: Mapping[str, Instruction], name: str) -> list[tuple[Instruction, int]]:
    """The readers of a value, and as which operand, through bitcasts."""
    found: list[tuple[Instruction, int]] = []
    for instruction in inner.values():
        for at, (operand, _) in enumerate(instruction.operands):
            if operand == name:
                if instruction.operation == "bitcast" and instruction.name != name:
                    found += _users(inner, instruction.name)
                else:
                    found.append((instruction, at))
    return found


def _custom_flops(instruction: Instruction, inputs: list[ArrayShape]) -> tuple[float, str, bool]:
    contracting = _GEMM_CONTRACTING.search(instruction.attributes)
    if not contracting or not inputs or not instruction.outputs:
        return 0.0, "fp32", False
    dimensions = [int(number) for number in re.findall(r"\d+", contracting[1])]
    if any(one >= len(inputs[0].sizes) for one in dimensions):
        return 0.0, "fp32", False
    depth = math.prod(inputs[0].sizes[one] for one in dimensions)
    precision = product_precision(inputs[0].dtype, instruction.attributes)
    return 2.0 * instruction.outputs[0].elements * depth, precision, True


def _group_size(attributes: str) -> int | None:
    if found := _GROUPS.search(attributes):
        return len([number for number in found[1].split(",") if number])
    if found := _IOTA_GROUPS.search(attributes):
        return int(found[1])
    if found := _MESH.search(attributes):
        axes = {axis: int(size) for axis, size in _AXIS.findall(found[1])}
        return math.prod(axes.get(axis, 1) for axis in re.findall(r"'([^']{1,60})'", found[2]))
    return None

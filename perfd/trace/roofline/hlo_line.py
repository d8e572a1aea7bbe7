"""Reads one line of XLA's HLO: what the operation computes, and what layout and tiling make it move.

A shape is `bf16[4096,1024]{1,0:T(8,128)(2,1)}`: the dtype, the sizes, the layout from the fastest to the
slowest dimension, and how tiles of the fastest dimensions are padded. (Source: "Shapes and layout" and
"Tiled layout" in XLA's documentation.)
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from perfd.errors import PerfdError
from perfd.trace.model.hlo_names import hlo_class
from perfd.trace.roofline.roofline_model import OperationWork, bytes_of, matmul_precision, vector_precision

_SHAPE = re.compile(r"\b([a-z]+\d*(?:e\d+m\d+(?:[a-z]\w*)?)?)\[([\d,]*)\](?:\{([^}]{0,200})\})?")
_LINE = re.compile(r"^\s*(?:ROOT\s+)?%?(?P<name>[\w.\-]+)\s*=\s*(?P<rest>.+)$", re.DOTALL)
_CALL = re.compile(r"(?:^|[\s)}\]])(?P<operation>[a-z][a-z0-9\-]*)\((?P<operands>.*)$", re.DOTALL)
_MAX_ELEMENTS = 10**15
_MAX_DIGITS = 15
_SPACE = re.compile(r"S\((\d{1,3})\)")
_TILE = re.compile(r"T\(([\d,]+)\)")


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrayShape:
    """One array."""

    dtype: str
    sizes: tuple[int, ...]
    layout: tuple[int, ...] = ()
    """Dimensions from the fastest to the slowest."""
    tile: tuple[int, ...] = ()
    """How the fastest dimensions are tiled, the fastest last."""
    memory_space: int = 0
    """0 is the device's main memory, 1 memory on its chip, 5 the host's."""

    @property
    def elements(self) -> int:
        """How many the array has."""
        return math.prod(self.sizes)

    @property
    def padded_elements(self) -> int:
        """How many its tiles have room for."""
        layout = self.layout or tuple(reversed(range(len(self.sizes))))
        sizes = list(self.sizes)
        for dimension, tile in zip(layout, reversed(self.tile), strict=False):
            sizes[dimension] = -(-sizes[dimension] // tile) * tile
        return math.prod(sizes)

    @property
    def size_bytes(self) -> float:
        """With padding."""
        return self.padded_elements * bytes_of(self.dtype)


def read_line(line: str) -> OperationWork:
    """What the operation of a line does and moves.

    Raises `PerfdError` if the line is not an HLO operation, or does not determine its work.
    """
    found = _LINE.match(line.strip())
    call = _CALL.search(found["rest"]) if found else None
    if not found or not call:
        raise PerfdError("Not a line of HLO: write it as `%dot.1 = f32[8,8] dot(f32[8,8] %a, ...)`.")
    head, (operands, attributes) = found["rest"][: call.start("operation")], _split(call["operands"])
    outputs, inputs = shapes(head), shapes(operands)
    if not outputs or not inputs:
        raise PerfdError(f"The line of {found['name']} lacks the shapes of its operands; dump HLO with them.")
    operation = call["operation"]
    if hlo_class(operation) == "communication":
        raise PerfdError(f"{operation} communicates: its limit is the link, not the roofline of a GPU.")
    return OperationWork(
        name=f"{found['name']} ({operation})",
        flops=flops_of(operation, outputs, inputs, attributes),
        traffic_bytes=sum(shape.size_bytes for shape in (*outputs, *inputs) if not shape.memory_space),
        precision=(
            matmul_precision(inputs[0].dtype)
            if operation in _MATRIX_OPERATIONS
            else vector_precision(inputs[0].dtype)
        ),
        notes=_padding_notes((*outputs, *inputs)),
    )


def shapes(text: str) -> list[ArrayShape]:
    """All shapes in a piece of a line."""
    found = []
    for match in _SHAPE.finditer(text):
        if any(len(number) > _MAX_DIGITS for number in re.split(r"\D", match[0])):
            raise PerfdError(f"No array is as large as {match[0][:60]}.")
        sizes = tuple(int(number) for number in match[2].split(",") if number)
        if math.prod(sizes) > _MAX_ELEMENTS:
            raise PerfdError(f"No array is as large as {match[0][:60]}.")
        layout, _, tiling = (match[3] or "").partition(":")
        tile, space = _TILE.search(tiling), _SPACE.search(tiling)
        order = tuple(int(number) for number in map(str.strip, layout.split(",")) if number.isdecimal())
        if order and sorted(order) != list(range(len(sizes))):
            raise PerfdError(
                f"The layout {{{layout}}} does not fit the {len(sizes)} dimensions of {match[0]}."
            )
        found.append(
            ArrayShape(
                dtype=match[1],
                sizes=sizes,
                layout=order,
                tile=tuple(max(1, int(number)) for number in tile[1].split(",") if number) if tile else (),
                memory_space=int(space[1]) if space else 0,
            )
        )
    return found


_MATRIX_OPERATIONS = frozenset({"dot", "convolution"})


def _split(text: str) -> tuple[str, str]:
    """The operands up to the bracket that closes them, and the attributes behind."""
    depth = 1
    for at, sign in enumerate(text):
        depth += (sign == "(") - (sign == ")")
        if depth == 0:
            return text[:at], text[at + 1 :]
    return text, ""


def flops_of(operation: str, outputs: list[ArrayShape], inputs: list[ArrayShape], attributes: str) -> float:
    """Arithmetic of one operation; raises `PerfdError` if its line does not determine that."""
    elements = outputs[0].elements
    if operation == "dot":
        contracted = _dimensions("lhs_contracting_dims", attributes)
        if contracted is None or any(one >= len(inputs[0].sizes) for one in contracted):
            raise PerfdError(
                "The dot does not say which dimensions it contracts (lhs_contracting_dims={...})."
            )
        return 2.0 * elements * math.prod(inputs[0].sizes[one] for one in contracted)
    if operation == "convolution":
        return 2.0 * elements * _convolution_depth(inputs, attributes)
    if operation in {"fusion", "custom-call"}:
        raise PerfdError(f"What a {operation} computes is not on its line; give the line of what it holds.")
    if hlo_class(operation) in {"copy", "infeed"}:
        return 0.0
    # One operation for each element that goes in or comes out, whichever are more: reductions shrink.
    return float(max(shape.elements for shape in (*outputs, *inputs)))


def _convolution_depth(inputs: list[ArrayShape], attributes: str) -> int:
    """Products for each output: the kernel's window and its input features."""
    labels = re.search(r"dim_labels=\w+_(\w+)->", attributes)
    if not labels or len(inputs) < 2 or len(labels[1]) != len(inputs[1].sizes):
        raise PerfdError("The convolution does not say what its kernel's dimensions are (dim_labels=...).")
    return math.prod(size for size, label in zip(inputs[1].sizes, labels[1], strict=True) if label != "o")


def _dimensions(name: str, attributes: str) -> tuple[int, ...] | None:
    found = re.search(rf"{name}=\{{((?:\d{{1,9}}(?:,|(?=\}})))*)\}}", attributes)
    return tuple(int(number) for number in found[1].split(",") if number) if found else None


def _padding_notes(found: tuple[ArrayShape, ...]) -> tuple[str, ...]:
    return tuple(
        f"Tiling pads {shape.dtype}[{','.join(map(str, shape.sizes))}] to"
        f" {shape.padded_elements / shape.elements:.2f} times its size."
        for shape in found
        if shape.elements and shape.padded_elements > shape.elements
    )

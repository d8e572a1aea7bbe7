"""Reads one line of XLA's HLO: what the operation computes, and what layout and tiling make it move.

A shape is `bf16[4096,1024]{1,0:T(8,128)(2,1)}`: the dtype, the sizes, the layout from the fastest to the
slowest dimension, and how tiles of the fastest dimensions are padded. (Source: "Shapes and layout" and
"Tiled layout" in XLA's documentation.)
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from perfd.errors import PerfdError
from perfd.trace.model.hlo_names import hlo_class
from perfd.trace.roofline.roofline_model import OperationWork, bytes_of, matmul_precision, vector_precision

_SHAPE = re.compile(r"\b([a-z]+\d*(?:e\d+m\d+(?:[a-z]\w*)?)?)\[([\d,]*)\](?:\{([^}]{0,200})\})?")
_LINE = re.compile(r"^\s*(?:ROOT\s+)?%?(?P<name>[\w.\-]+)\s*=\s*(?P<rest>.+)$", re.DOTALL)
_CALL = re.compile(r"(?:^|[\s)}\]])(?P<operation>[a-z][a-z0-9\-]*)\((?P<operands>.*)$", re.DOTALL)
_MAX_ELEMENTS = 10**15
"""Of a shape: no device holds more, and products of larger ones are not exact as doubles."""
_MAX_DIGITS = 15
"""Of a number in a shape: a longer one is not a size."""
_MOST_INPUTS = 16
"""Most inputs of an operation that are searched for a product's two operands."""
_SPACE = re.compile(r"S\((\d{1,3})\)")
_TILES = re.compile(r"T(?:\([\d,]+\)){1,4}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrayShape:
    """One array."""

    dtype: str
    sizes: tuple[int, ...]
    layout: tuple[int, ...] = ()
    """Dimensions from the fastest to the slowest."""
    tiles: tuple[tuple[int, ...], ...] = ()
    """Tiles of the minor dimensions, the minor one last; each further tiling divides the one before."""
    memory_space: int = 0
    """0 is the device's main memory, 1 memory on its chip, 5 the host's."""

    @property
    def elements(self) -> int:
        """How many the array has."""
        return math.prod(self.sizes)

    @property
    def padded_elements(self) -> int:
        """How many its tiles have room for."""
        if not self.tiles:
            return self.elements
        layout = self.layout or tuple(reversed(range(len(self.sizes))))
        # In memory order, the minor dimension last.
        sizes = [self.sizes[dimension] for dimension in reversed(layout)]
        for tile in self.tiles:
            # More dimensions than there are combine with ones of size 1.
            sizes = [1] * (len(tile) - len(sizes)) + sizes
            tiled = sizes[len(sizes) - len(tile) :]
            counts = [-(-size // one) for size, one in zip(tiled, tile, strict=True)]
            sizes = [*sizes[: len(sizes) - len(tile)], *counts, *tile]
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
        raise PerfdError(
            f"The line of {found['name']} lacks the shapes of its operands: give the module's file,"
            " which has them."
        )
    operation = call["operation"]
    if hlo_class(operation) == "communication":
        raise PerfdError(f"{operation} communicates: its limit is the link, not the roofline of a GPU.")
    presumed = product_of(outputs, inputs) if operation in PRESUMED else None
    flops = 2.0 * presumed.work if presumed else flops_of(operation, outputs, inputs, attributes)
    matrix = operation in MATRIX_OPERATIONS or presumed is not None
    return OperationWork(
        name=f"{found['name']} ({operation})",
        flops=flops,
        traffic_bytes=sum(shape.size_bytes for shape in (*outputs, *inputs) if not shape.memory_space),
        precision=(
            product_precision(inputs[0].dtype, attributes) if matrix else vector_precision(inputs[0].dtype)
        ),
        notes=(
            *(
                [f"Assumed to be a matrix product from its shapes: it contracts {presumed.contracted}."]
                if presumed
                else []
            ),
            *_padding_notes((*outputs, *inputs)),
        ),
        arrays=tuple(array_words(shape) for shape in (*outputs, *inputs)),
    )


PRESUMED = frozenset({"fusion", "custom-call"})
"""Operations whose line does not show what they compute."""
_SPACES = {0: "main memory (HBM)", 1: "on the chip (VMEM)", 5: "the host's memory"}


@dataclass(frozen=True, slots=True, kw_only=True)
class PresumedProduct:
    """A matrix product that the shapes allow."""

    left: ArrayShape
    right: ArrayShape
    contracted: int
    """The size of the dimension that both operands share and the result lacks."""
    work: float
    """Products that are summed."""


def product_of(outputs: Sequence[ArrayShape], inputs: Sequence[ArrayShape]) -> PresumedProduct | None:
    """The matrix product that an operation may be, judged by shapes alone.

    Two inputs share one size that the result lacks, and the result has all others, batch sizes once.
    None if no pair of inputs fits.
    """
    if not outputs:
        return None
    result = Counter(size for size in outputs[0].sizes if size > 1)
    for at, left in enumerate(inputs[:_MOST_INPUTS]):
        for right in inputs[at + 1 : _MOST_INPUTS]:
            one, other = (Counter(size for size in each.sizes if size > 1) for each in (left, right))
            for shared in sorted(one & other, reverse=True):
                rest = (one - Counter([shared])) + (other - Counter([shared]))
                batch = rest - result
                if not result - rest and not batch - (one & other) and sum((one + other).values()) > 2:
                    return PresumedProduct(
                        left=left, right=right, contracted=shared, work=float(outputs[0].elements) * shared
                    )
    return None


def array_words(shape: ArrayShape) -> tuple[str, str, str, str]:
    """An array in words: type and sizes, dimensions in memory order, tiles, and memory space."""
    order = shape.layout or tuple(reversed(range(len(shape.sizes))))
    sizes = ", ".join(f"{one} ({shape.sizes[one]})" for one in order)
    tiles = " in ".join("x".join(map(str, tile)) for tile in reversed(shape.tiles))
    if shape.tiles and shape.elements:
        tiles += f": {shape.padded_elements / shape.elements:.2f} times its size"
    return (
        shape_words(shape),
        f"{sizes}, minor to major" if order else "scalar",
        tiles or "none",
        _SPACES.get(shape.memory_space, f"memory space {shape.memory_space}"),
    )


def shape_words(shape: ArrayShape) -> str:
    """`bf16[4096,8192]`."""
    return f"{shape.dtype}[{','.join(map(str, shape.sizes))}]"


@lru_cache(maxsize=4096)
def shapes(text: str) -> Sequence[ArrayShape]:
    """All shapes in a piece of a line; a module has few different ones."""
    found = []
    for match in _SHAPE.finditer(text):
        if any(len(number) > _MAX_DIGITS for number in re.split(r"\D", match[0])):
            raise PerfdError(f"No array is as large as {match[0][:60]}.")
        sizes = tuple(int(number) for number in match[2].split(",") if number)
        if math.prod(sizes) > _MAX_ELEMENTS:
            raise PerfdError(f"No array is as large as {match[0][:60]}.")
        layout, _, tiling = (match[3] or "").partition(":")
        tiles, space = _TILES.search(tiling), _SPACE.search(tiling)
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
                tiles=tuple(_tile(text) for text in re.findall(r"\(([\d,]+)\)", tiles[0])) if tiles else (),
                memory_space=int(space[1]) if space else 0,
            )
        )
    return tuple(found)


def _tile(text: str) -> tuple[int, ...]:
    return tuple(max(1, int(number)) for number in text.split(",") if number)


MATRIX_OPERATIONS = frozenset({"dot", "scaled-dot", "convolution"})
_FULL_PRECISION = re.compile(r'(?:operand_precision=\{|"operand_precision":\[")highest', re.IGNORECASE)
_ALGORITHM = re.compile(
    r'(?:\balgorithm=|"algorithm":"ALG_)dot_(bf16|f16|tf32|f32|f64)_(?:\w+_f32(_x[369])\b)?', re.IGNORECASE
)


def product_precision(dtype: str, attributes: str) -> str:
    """The precision whose peak applies to a matrix product, from its operands' dtype and its attributes.

    XLA multiplies f32 as TF32 if the GPU can, unless the job requests `highest` or an algorithm. With one
    that adds several products it is, for example, `bf16_x3`. (Source: "Matmul precision" in JAX's
    documentation; `GetBlasComputationType` and `PrecisionConfig.Algorithm` of XLA.)
    """
    if found := _ALGORITHM.search(attributes):
        asked = found[1].lower()
        return "fp32" if asked == "f32" else matmul_precision(asked) + (found[2] or "").lower()
    precision = matmul_precision(dtype)
    return "fp32" if precision == "tf32" and _FULL_PRECISION.search(attributes) else precision


def _split(text: str) -> tuple[str, str]:
    """The operands up to the bracket that closes them, and the attributes behind."""
    depth = 1
    for at, sign in enumerate(text):
        depth += (sign == "(") - (sign == ")")
        if depth == 0:
            return text[:at], text[at + 1 :]
    return text, ""


def flops_of(
    operation: str, outputs: Sequence[ArrayShape], inputs: Sequence[ArrayShape], attributes: str
) -> float:
    """Arithmetic of one operation; raises `PerfdError` if its line does not determine that."""
    elements = outputs[0].elements
    if operation in {"dot", "scaled-dot"}:
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


def _convolution_depth(inputs: Sequence[ArrayShape], attributes: str) -> int:
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
        # Arrays of one shape are padded alike.
        dict.fromkeys(
            f"Tiling pads {shape.dtype}[{','.join(map(str, shape.sizes))}] to"
            f" {shape.padded_elements / shape.elements:.2f} times its size."
            for shape in found
            if shape.elements and shape.padded_elements > shape.elements
        )
    )

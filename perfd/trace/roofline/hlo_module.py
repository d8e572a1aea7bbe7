"""Reads whole modules of XLA's optimized HLO: computations, instructions, and what calls what.

An instruction is `%name = TYPE operation(%operand, %tuple#0), attribute=...`; its operands' shapes are those
of the instructions that they name. (Source: XLA's documentation, "Operation semantics", and the text that
`as_text()` and `--xla_dump_to` write.)
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from perfd.errors import PerfdError
from perfd.trace.roofline.hlo_line import ArrayShape, shapes

_HEAD = re.compile(r"^HloModule ([\w.\-]{1,200})")
_DEVICES = re.compile(r"\b(?:num_partitions|replica_count)=(\d{1,7})\b")
_COMPUTATION = re.compile(r"^(ENTRY )?%?([\w.\-]{1,200}) .{0,20}\(")
_COMPUTATION_BARE = re.compile(r"^(ENTRY )?%?([\w.\-]{1,200}) \{$")
_INSTRUCTION = re.compile(r"^\s+(ROOT )?%?([\w.\-]{1,200}) = ")
_OPERATION = re.compile(r"([a-z][a-z0-9\-]{0,60})\(")
_OPERAND = re.compile(r"%?([\w.\-]{1,200})(?:#(\d{1,6}))?$")
_BRACKET = re.compile(r"[](){}[]")
_COMMENT = re.compile(r"/\*index=\d{1,9}\*/")
_CALLED = re.compile(r"\b(?:calls|body|to_apply|condition)=%?([\w.\-]{1,200})")
_BODY = re.compile(r"\bbody=%?([\w.\-]{1,200})")
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d{1,12})"')


@dataclass(frozen=True, slots=True, kw_only=True)
class Instruction:
    """One line of a computation."""

    name: str
    operation: str
    outputs: Sequence[ArrayShape]
    """One, or the arrays of a tuple."""
    operands: Sequence[tuple[str, int | None]]
    """Names, and which array of a tuple."""
    attributes: str
    root: bool = False

    @property
    def called(self) -> str | None:
        """The computation of a fusion, a call or an asynchronous start."""
        found = _CALLED.search(self.attributes)
        return found[1] if found else None

    @property
    def loop(self) -> tuple[str, int | None] | None:
        """The body of a while loop and how often it runs, None if XLA does not know."""
        body = _BODY.search(self.attributes) if self.operation == "while" else None
        trips = _TRIPS.search(self.attributes)
        return (body[1], int(trips[1]) if trips else None) if body else None


@dataclass(frozen=True, slots=True, kw_only=True)
class HloModule:
    """A module: its computations by name."""

    name: str
    entry: str
    computations: Mapping[str, Mapping[str, Instruction]] = field(default_factory=dict)
    devices: int = 1
    """How many run it, each with its part: partitions times replicas."""
    fused_work: dict[str, tuple[float, str]] = field(default_factory=dict, compare=False, repr=False)
    """FLOPs and precision of the fused computations that were counted, which may call each other."""

    def inputs(self, computation: str, instruction: Instruction) -> list[ArrayShape]:
        """The arrays that an instruction reads; those that are unknown are left out."""
        found: list[ArrayShape] = []
        for name, index in instruction.operands:
            source = self.computations[computation].get(name)
            if source is None:
                continue
            if index is None:
                found += source.outputs
            elif index < len(source.outputs):
                found.append(source.outputs[index])
        return found


def read_module(text: str) -> HloModule:
    """The module of a text; raises `PerfdError` if it is not one, or is cut before its entry computation."""
    head = _HEAD.match(text.lstrip())
    if not head:
        raise PerfdError("Not a module of HLO: it begins with `HloModule NAME`.")
    computations: dict[str, dict[str, Instruction]] = {}
    entry, current = "", None
    for line in text.splitlines():
        if line.startswith("}"):
            current = None
        elif current is not None:
            if (found := read_instruction(line)) is not None:
                current[found.name] = found
        elif line.endswith("{") and (start := _COMPUTATION.match(line) or _COMPUTATION_BARE.match(line)):
            current = computations.setdefault(start[2], {})
            entry = start[2] if start[1] else entry
    if not computations.get(entry):
        raise PerfdError("The module has no entry computation: it is cut, or not optimized HLO.")
    sizes = [int(found[1]) for found in _DEVICES.finditer(text.lstrip().partition("\n")[0])]
    return HloModule(name=head[1], entry=entry, computations=computations, devices=math.prod(sizes) or 1)


def read_instruction(line: str) -> Instruction | None:
    """The instruction of an indented line; None if it is none."""
    start = _INSTRUCTION.match(line)
    if not start:
        return None
    rest = line[start.end() :]
    end = _closing(rest, 0) + 1 if rest.startswith("(") else rest.find(" ")
    call = _OPERATION.match(rest, end + 1) if end > 0 else None
    if not call:
        return None
    close = _closing(rest, call.end() - 1)
    return Instruction(
        name=start[2],
        operation=call[1],
        outputs=shapes(rest[:end]),
        operands=tuple(_operands(rest[call.end() : close])),
        attributes=rest[close + 1 :],
        root=bool(start[1]),
    )


def _closing(text: str, opening: int) -> int:
    """Where the bracket is that closes the one at `opening`; the end if none does."""
    depth = 0
    for at in range(opening, len(text)):
        sign = text[at]
        if sign == "(":
            depth += 1
        elif sign == ")":
            depth -= 1
            if depth == 0:
                return at
    return len(text)


def _operands(text: str) -> Iterable[tuple[str, int | None]]:
    plain = _COMMENT.sub("", text)
    for word in _parts(plain) if _BRACKET.search(plain) else plain.split(","):
        if found := _OPERAND.fullmatch(word.strip().rpartition(" ")[2]):
            yield found[1], int(found[2]) if found[2] else None


def _parts(text: str) -> Iterator[str]:
    """Between commas that are in no bracket."""
    depth, begin = 0, 0
    for at, sign in enumerate(f"{text},"):
        if sign in "({[":
            depth += 1
        elif sign in ")}]":
            depth -= 1
        elif sign == "," and depth == 0:
            yield text[begin:at]
            begin = at + 1

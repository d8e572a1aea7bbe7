"""Reads pieces of HLO without a module: lines from a dump or a trace viewer, also with their times.

    fusion.1 | 12.3 ms
      -> bf16[4096] = fusion(bf16[4096,8192]{1,0} %param.1, bf16[8192] %reduce.6)
    all-reduce.1 | 2.1 ms
      -> replica_groups={{0,1,2,3,4,5,6,7}}

A collective without operands is taken to be of what the line before it computes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from perfd.errors import PerfdError
from perfd.trace.roofline.hlo_line import shapes
from perfd.trace.roofline.hlo_module import HloModule, Instruction, read_instruction

_HEAD = re.compile(
    r"\s{0,40}(?:Op \d{1,6}: )?%?([\w.\-]{1,200})\s{0,40}\|\s{0,40}(\d{1,9}(?:\.\d{1,9})?) ?(us|µs|ms|s)\s*"
)
_ARROW = re.compile(r"^\s{0,40}(?:->|→)\s{0,10}")
_CONTINUED = ("(", ",")
_PLAIN = re.compile(r"[a-z0-9]+\[[^=]{0,300} = ")
_INLINE = re.compile(r"([a-z]\w{0,20}\[[\d,]{0,200}\](?:\{[^{}]{0,200}\})?) %?([\w.\-]{1,200})")
_POWERS = {"us": -6, "µs": -6, "ms": -3, "s": 0}
_ENTRY = "fragment"
_MOST_LINES = 100_000
"""More are not a pasted piece of HLO."""


def read_fragment(text: str) -> tuple[HloModule, dict[str, float]]:
    """The operations as a module, and the measured seconds of those that have a time.

    Raises `PerfdError` if no line is an operation.
    """
    instructions: dict[str, Instruction] = {}
    times_s: dict[str, float] = {}
    last = ""
    for name, body, time_s in _operations(text):
        if time_s is not None:
            times_s[name] = time_s
        found = read_instruction(f"  %{name} = {body}") if " " in body else None
        if found is None and (known := instructions.get(last)) is not None and "replica_groups=" in body:
            operation = re.sub(r"[.\d]+$", "", name)
            found = Instruction(
                name=name,
                operation=operation,
                outputs=known.outputs,
                operands=((last, None),),
                attributes=body,
            )
        if found is None:
            continue
        for shape, operand in _INLINE.findall(body.partition("(")[2]):
            # What no line computes comes from outside.
            instructions.setdefault(
                operand,
                Instruction(
                    name=operand, operation="parameter", outputs=shapes(shape), operands=(), attributes=""
                ),
            )
        instructions[name] = found
        last = name
    if not last:
        raise PerfdError(
            "Not HLO: give a module, or lines such as `%dot.1 = f32[8,8] dot(f32[8,8] %a, ...)`."
        )
    return HloModule(name="these lines", entry=_ENTRY, computations={_ENTRY: instructions}), times_s


def _operations(text: str) -> Iterator[tuple[str, str, float | None]]:
    """Name, what follows the equals sign, and the time, of each operation."""
    name, time_s, unnamed = "", None, 0
    for line in _joined(text):
        if head := _HEAD.fullmatch(line):
            if name:
                yield name, "", time_s
            name, time_s = head[1], float(f"{head[2]}e{_POWERS[head[3]]}")
            continue
        body = _ARROW.sub("", line).strip()
        if name and (_PLAIN.match(body) or body.startswith("replica_groups=")):
            # A viewer writes the result before the equals sign, and the name above.
            shape, equals, call = body.partition(" = ")
            yield name, f"{shape} {call}" if equals else body, time_s
        elif named := re.fullmatch(r"(?:ROOT )?%?([\w.\-]{1,200}) = (.{1,20000})", body):
            yield named[1], named[2], time_s if named[1] == name else None
        elif _PLAIN.match(body):
            unnamed += 1
            shape, _, call = body.partition(" = ")
            yield f"operation.{unnamed}", f"{shape} {call}", None
        else:
            continue
        name, time_s = "", None
    if name:
        yield name, "", time_s


def _joined(text: str) -> Iterator[str]:
    """Lines, those that end within a list together with the next."""
    parts: list[str] = []
    for line in text.splitlines()[:_MOST_LINES]:
        if not parts:
            parts.append(line)
        elif line.strip():
            parts.append(line.strip())
        if not parts[-1].rstrip().endswith(_CONTINUED):
            yield " ".join(parts)
            parts.clear()
    if parts:
        yield " ".join(parts)

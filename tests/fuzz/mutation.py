"""Changes bytes as a fuzzer does: flips, numbers at the edges, pieces cut, repeated and put elsewhere."""

from __future__ import annotations

import re
from collections.abc import Sequence
from random import Random

MOST_BYTES = 200_000
_NUMBERS = (
    *(b"0", b"-1", b"nan", b"inf", b"-Infinity", b"1e308", b"1e999", b"1e-320", b"0.5"),
    *(b"9223372036854775807", b"9223372036854775808", b"18446744073709551616", b"9" * 5000),
)
_PIECES = (
    *(b"\0", b"\n", b"\r", b"\xff", b"\xed\xa0\x80", b"\x1b[0m", b'"', b"'", b"{", b"}", b"[", b"]"),
    *(b"|", b":", b",", b"=", b" " * 64, b"\t", b"\\", b"../", b"%s", b"(" * 50, b"[" * 2000, b"null"),
)
_NUMBER = re.compile(rb"-?\d{1,20}(?:\.\d{1,20})?")


def mutated(data: bytes, chance: Random, corpus: Sequence[bytes]) -> bytes:
    """The bytes with 1 to 16 changes, the same for the same state of `chance`."""
    changed = bytearray(data)
    for _ in range(1 << chance.randrange(5)):
        _change(changed, chance, corpus)
        del changed[MOST_BYTES:]
    return bytes(changed)


def _change(data: bytearray, chance: Random, corpus: Sequence[bytes]) -> None:
    at = chance.randrange(len(data) + 1)
    end = min(len(data), at + chance.choice((1, 2, 8, 64, 512)))
    match chance.randrange(8):
        case 0 if at < len(data):
            data[at] ^= 1 << chance.randrange(8)
        case 1:
            data[at:at] = chance.choice(_PIECES)
        case 2:
            data[at:at] = chance.choice(_NUMBERS)
        case 3:
            del data[at:end]
        case 4:
            data[at:at] = data[at:end] * chance.choice((1, 2, 10, 100))
        case 5:
            other = chance.choice(corpus)
            start = chance.randrange(len(other) + 1)
            data[at:at] = other[start : start + 200]
        case 6 if found := list(_NUMBER.finditer(bytes(data[at : at + 2000]))):
            number = chance.choice(found)
            data[at + number.start() : at + number.end()] = chance.choice(_NUMBERS)
        case _:
            lines = bytes(data).split(b"\n")
            line = chance.randrange(len(lines))
            lines[line:line] = [chance.choice(lines)] * chance.choice((1, 2, 20))
            data[:] = b"\n".join(lines)

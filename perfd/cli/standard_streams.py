"""Standard input, output and error of the command, whatever its caller made of them."""

from __future__ import annotations

import codecs
import contextlib
import io
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal, TextIO

_INPUT, _OUTPUT, _ERROR = range(3)


def prepare_streams() -> None:
    """Let a stream that the caller closed lead nowhere, and standard output take any text.

    The next file that is opened would get the number of the closed stream, and be written or inherited as
    if it were that stream.
    """
    for number in (_INPUT, _OUTPUT, _ERROR):
        try:
            os.fstat(number)
        except OSError:
            # The lowest free number is taken: this one, as those below it are open.
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
    sys.stdin = sys.stdin or _stream(_INPUT, "r")
    sys.stdout = sys.stdout or _stream(_OUTPUT, "w")
    sys.stderr = sys.stderr or _stream(_ERROR, "w")
    if isinstance(sys.stdout, io.TextIOWrapper):
        codecs.register_error("perfd", _escaped)
        sys.stdout.reconfigure(errors="perfd")


def _stream(number: int, mode: Literal["r", "w"]) -> TextIO:
    return open(number, mode, encoding="utf-8", closefd=False)


def _escaped(error: UnicodeError) -> tuple[str, int]:
    r"""Characters that the encoding lacks as `\uXXXX`, which is also valid in JSON; the micro sign as u."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    text = error.object[error.start : error.end].replace("\N{MICRO SIGN}", "u")
    return json.dumps(text)[1:-1], error.end


@contextmanager
def output_written() -> Iterator[None]:
    """Have what is printed meanwhile written at its end, however that comes: raises `OSError` if it is not.

    Later the interpreter would try, and end with an exit code and words of its own.
    """
    try:
        yield
    finally:
        sys.stdout.flush()


@contextmanager
def streams_settled() -> Iterator[None]:
    """Drop at the end of the process what standard output and error could not take.

    Their reader has left or their disk is full; that was reported, or there is nowhere to report it. They
    are closed, because traces are read without the right to open another file.
    """
    try:
        yield
    finally:
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except OSError:
                with contextlib.suppress(OSError):
                    stream.close()

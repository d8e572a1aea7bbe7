"""What requests ask for: numbers in a query, and the status of an answer when they cannot be answered."""

from __future__ import annotations

import math
from collections.abc import Mapping

from perfd.errors import PerfdError
from perfd.net import Handler, Request, Response, error_response

_MOST_DIGITS = 20
"""More than any number that a request may ask for, and far below where Python's conversion is slow."""


class QueryError(PerfdError):
    """A request asks for something wrong, as its sentence says: status 400."""


def whole_number(
    query: Mapping[str, str], name: str, *, least: int = 0, most: int | None = None
) -> int | None:
    """The value of `name`, None if it is absent; raises `QueryError` unless it is a whole number in range."""
    text = query.get(name)
    if text is None:
        return None
    whole = text.isdecimal() and len(text) <= _MOST_DIGITS
    if not whole or int(text) < least or (most is not None and int(text) > most):
        allowed = "" if most is None else f" from {least} to {most}"
        raise QueryError(f"`{name}` must be a whole number{allowed}.")
    return int(text)


def number(query: Mapping[str, str], name: str, default: float) -> float:
    """The value of `name`, `default` if it is absent; raises `QueryError` if it is not a number."""
    try:
        value = float(query.get(name, default))
    except ValueError:
        value = math.nan
    if math.isnan(value):
        raise QueryError(f"`{name}` must be a number.")
    return value


def answered(handler: Handler) -> Handler:
    """The handler, whose `QueryError` is status 400 and any other `PerfdError` 503."""

    def answer(request: Request) -> Response:
        try:
            return handler(request)
        except QueryError as error:
            return error_response(400, str(error))
        except PerfdError as error:
            return error_response(503, str(error))

    return answer

"""Arrays with room for more than they hold."""

from __future__ import annotations

from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from perfd.analysis.data.job_data import Floats, Ints

_Number = TypeVar("_Number", bound=np.generic)


def roomier(array: NDArray[_Number], shape: tuple[int, ...]) -> NDArray[_Number]:
    """The array with longer first axes; what is new has no value yet."""
    larger = np.empty((*shape, *array.shape[len(shape) :]), dtype=array.dtype)
    larger[tuple(slice(length) for length in array.shape)] = array
    return larger


def chosen(array: NDArray[_Number], rows: Ints) -> NDArray[_Number]:
    """These rows, which are in order, of an array; not a copy where they are the first ones."""
    return array[: len(rows)] if len(rows) and rows[-1] == len(rows) - 1 else array[rows]


class NewestColumns:
    """The newest values of several columns, at most `most` of each."""

    def __init__(self, columns: int, most: int) -> None:
        self._most = most
        self._values: Floats = np.empty((columns, 0))
        self._first = self._end = 0

    @property
    def held(self) -> Floats:
        """(columns, n), newest last; valid until the next `put`."""
        return self._values[:, self._first : self._end]

    def put(self, values: Floats) -> None:
        """Append (columns, n) values."""
        values = values[:, -self._most :]
        end = self._end + values.shape[1]
        if end > self._values.shape[1]:
            held = self.held[:, -self._most :]
            # Doubling keeps the cost of copying per value constant.
            grown = np.empty((len(values), min(2 * self._most, 2 * (held.shape[1] + values.shape[1]))))
            grown[:, : held.shape[1]] = held
            self._values, self._first = grown, 0
            end = held.shape[1] + values.shape[1]
        self._values[:, end - values.shape[1] : end] = values
        self._end = end
        self._first = max(self._first, end - self._most)

    def clear(self) -> None:
        """Forget all."""
        self._first = self._end = 0

"""Arrays with room for more than they hold."""

from __future__ import annotations

from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from perfd.analysis.data.job_data import Ints

_Number = TypeVar("_Number", bound=np.generic)


def roomier(array: NDArray[_Number], shape: tuple[int, ...]) -> NDArray[_Number]:
    """The array with longer first axes; what is new has no value yet."""
    larger = np.empty((*shape, *array.shape[len(shape) :]), dtype=array.dtype)
    larger[tuple(slice(length) for length in array.shape)] = array
    return larger


def chosen(array: NDArray[_Number], rows: Ints) -> NDArray[_Number]:
    """These rows, which are in order, of an array; not a copy where they are the first ones."""
    return array[: len(rows)] if len(rows) and rows[-1] == len(rows) - 1 else array[rows]

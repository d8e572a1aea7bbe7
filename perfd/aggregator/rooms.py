"""Arrays with room for more than they hold."""

from __future__ import annotations

from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

_Number = TypeVar("_Number", bound=np.generic)


def roomier(array: NDArray[_Number], shape: tuple[int, ...]) -> NDArray[_Number]:
    """The array with longer first axes; what is new has no value yet."""
    larger = np.empty((*shape, *array.shape[len(shape) :]), dtype=array.dtype)
    larger[tuple(slice(length) for length in array.shape)] = array
    return larger

# SPDX-License-Identifier: Apache-2.0
# Copyright the Aquifer authors

"""Arrays in named mappings, which are flushed as those of ``numpy.memmap`` are. Imported when the first is opened."""

import contextlib
from typing import TYPE_CHECKING, Any

import numpy

from ._arrays import mapping_of, over, size_of

if TYPE_CHECKING:
    from ._space import Space

MODES = ("r", "r+", "w+")


class NamedArray(numpy.ndarray):
    """An array in a named mapping. Its slices are such arrays, too; what is computed from it is an ordinary one."""

    def flush(self) -> None:
        """Makes the array durable, or this part of it: all of it as it is now, or, after a crash, as at the flush
        before. Nothing else writes to it meanwhile."""
        mapping, start, stop = mapping_of(self)
        if start < stop:
            mapping.sync(start, stop)

    def __array_wrap__(self, array: Any, context: Any = None, return_scalar: bool = False) -> Any:
        if array is self:
            return array
        plain = array.view(numpy.ndarray)
        return plain[()] if return_scalar or plain.shape == () else plain


def opened(name: str, dtype: Any, mode: str, offset: int, shape: Any, order: str, space: "Space") -> NamedArray:
    """The array in the mapping ``name``, in a mode of ``MODES``."""
    if mode not in MODES:
        raise ValueError(f"'{mode}' is not a mode; choose one of {', '.join(MODES)}")
    dtype = numpy.dtype(dtype)
    size = None
    if mode == "w+":
        if shape is None:
            raise ValueError("a new array has a shape; give one, or open the array that exists with the mode r+")
        size = max(offset + size_of(shape, dtype), 1)
    mapping = space.map_named(name, size)
    try:
        if mode == "w+":
            mapping.discard()
        array: NamedArray = over(mapping, dtype, shape, offset, order, mode != "r").view(NamedArray)
        return array
    except BaseException:
        # The traceback refers to the mapping, which would stay open for as long as the exception is kept.
        with contextlib.suppress(BufferError):
            mapping.close()
        raise

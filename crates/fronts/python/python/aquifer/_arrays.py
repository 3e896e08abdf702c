# SPDX-License-Identifier: Apache-2.0
# Copyright the Aquifer authors

"""NumPy arrays over mappings. NumPy is imported when the first of these is called."""

import asyncio
import operator
from typing import TYPE_CHECKING, Any, Tuple

from . import _native
from ._errors import new

if TYPE_CHECKING:
    from ._mapping import Mapping
    from ._space import Space


def _numpy() -> Any:
    """NumPy, whose own types differ from version to version."""
    import numpy

    return numpy


def over(mapping: "Mapping", dtype: Any, shape: Any, offset: int, order: str, is_writable: bool = True) -> Any:
    """An array over a mapping's memory."""
    numpy = _numpy()

    dtype = numpy.dtype(dtype)
    _check(dtype)
    if shape is None:
        rest = len(mapping) - offset
        if rest < 0 or rest % dtype.itemsize:
            message = f"the {rest} bytes from {offset} on are not whole elements of {dtype.itemsize}; give a shape"
            fields = [("start", offset), ("stop", len(mapping)), ("unit", dtype.itemsize)]
            raise new("UnalignedError", message, None, fields)
        shape = (rest // dtype.itemsize,)
    shape = _shape(shape)
    stop = offset + _bytes(shape, dtype)
    if offset < 0 or stop > len(mapping):
        message = f"the range {offset}..{stop} is not within the mapping, which has {len(mapping)} bytes"
        fields = [("start", offset), ("stop", stop), ("length", len(mapping))]
        raise new("OutOfRangeError", message, None, fields)
    # `frombuffer` keeps its memoryview, which counts as a use of the mapping; `ndarray(buffer=...)` would not.
    exporter: Any = mapping
    buffer = numpy.frombuffer(exporter if is_writable else memoryview(exporter).toreadonly(), numpy.uint8)
    return numpy.ndarray(shape, dtype, buffer=buffer, offset=offset, order=order)


def empty(shape: Any, dtype: Any = float, *, space: "Space", order: str = "C") -> Any:
    """A new array in a mapping of its own, which closes with the last array over it. It contains zeros."""
    numpy = _numpy()

    dtype = numpy.dtype(dtype)
    _check(dtype)
    shape = _shape(shape)
    return over(space.map(max(_bytes(shape, dtype), 1)), dtype, shape, 0, order)


def memmap(
    name: str,
    dtype: Any = "u1",
    mode: str = "r+",
    offset: int = 0,
    shape: Any = None,
    order: str = "C",
    *,
    space: "Space",
) -> Any:
    """The array in the named mapping ``name`` of ``space``, in the manner of ``numpy.memmap``.

    ``mode``: ``"r"`` opens the array that exists and cannot write to it, ``"r+"`` opens it, and ``"w+"`` makes a new
    one of zeros, with a shape, in place of what the mapping has. Without a shape, the array is all of the rest from
    ``offset`` on. The mapping closes with the last array over it.

    ``flush()`` of the array, or of a slice, makes it durable, all of it or none. Unlike with ``numpy.memmap``, what is
    not flushed is lost when the array is closed.
    """
    from ._memmap import opened

    return opened(name, dtype, mode, offset, shape, order, space)


def mapping_of(array: Any) -> "Tuple[Mapping, int, int]":
    """The mapping that an array, or a part of one, lies in, and the range of bytes there: for hints."""
    numpy = _numpy()

    mapping = _owner(array)
    if mapping is None:
        raise TypeError("the array does not lie in a mapping; make it with aquifer.empty or mapping.array")
    first, last = numpy.lib.array_utils.byte_bounds(array) if hasattr(numpy.lib, "array_utils") else _bounds(array)
    return mapping, int(first) - mapping.address, int(last) - mapping.address


def gather(array: Any, indices: Any) -> Any:
    """A new array with these rows, as ``array[indices]``, with the tier's reads of them overlapped."""
    numpy = _numpy()

    call, shape, dtype = _prepared(array, indices)
    return numpy.frombuffer(_native.Mapping.gathered(*call), dtype).reshape(shape)


async def gather_async(array: Any, indices: Any) -> Any:
    """As ``gather``, while other tasks of the event loop run."""
    numpy = _numpy()

    call, shape, dtype = _prepared(array, indices)
    loop = asyncio.get_running_loop()
    found = await loop.run_in_executor(None, _native.Mapping.gathered, *call)
    return numpy.frombuffer(found, dtype).reshape(shape)


def _prepared(array: Any, indices: Any) -> Any:
    """The native call that gathers rows, and the shape and type of what it returns."""
    numpy = _numpy()

    mapping = _owner(array)
    if mapping is None:
        raise TypeError("the array does not lie in a mapping; index it as usual")
    if isinstance(array, numpy.ma.MaskedArray):
        raise TypeError("the rows of a masked array have masks; gather array.data, and index array.mask")
    if array.ndim == 0 or array.strides[0] < 0 or (array.ndim > 1 and array.size and not array[0].flags.c_contiguous):
        raise TypeError("rows are gathered from arrays in C order, first dimension ascending; index it as usual")
    indices = numpy.asarray(indices)
    if indices.size == 0:
        indices = indices.astype(numpy.int64)
    if indices.dtype.kind not in "iu":
        raise TypeError(f"indices are integers, not {indices.dtype}")
    # Narrower numbers could not be added to the number of rows.
    indices = indices.astype(numpy.int64 if indices.dtype.kind == "i" else numpy.uint64, copy=False)
    rows = array.shape[0]
    if indices.size and (int(indices.min()) < -rows or int(indices.max()) >= rows):
        message = f"an index is out of bounds for an array of {rows} rows"
        raise new("OutOfRangeError", message, None, [("length", rows)])
    wrapped = numpy.where(indices < 0, indices + rows, indices) if indices.dtype.kind == "i" else indices
    packed = numpy.ascontiguousarray(wrapped, dtype=numpy.uint64).tobytes()
    row_bytes = _bytes(array.shape[1:], array.dtype)
    offset = array.__array_interface__["data"][0] - mapping.address if array.size else 0
    call = (mapping, offset, max(array.strides[0], 0), row_bytes, packed)
    return call, indices.shape + array.shape[1:], array.dtype


def _owner(array: Any) -> "Any":
    """The mapping to which an array refers, directly or through other arrays."""
    from ._mapping import Mapping

    numpy = _numpy()

    if not isinstance(array, numpy.ndarray):
        raise TypeError(f"this needs a NumPy array, not {type(array).__name__}")
    base = array
    while isinstance(base, numpy.ndarray):
        base = base.base
    owner = base.obj if isinstance(base, memoryview) else base
    return owner if isinstance(owner, Mapping) else None


def _bounds(array: Any) -> Tuple[int, int]:
    """As numpy.lib.array_utils.byte_bounds, for NumPy 1."""
    first, last = _numpy().byte_bounds(array)
    return first, last


def size_of(shape: Any, dtype: Any) -> int:
    """The bytes of an array of this shape and type, which must have some that are plain values."""
    _check(dtype)
    return _bytes(_shape(shape), dtype)


def _check(dtype: Any) -> None:
    if dtype.hasobject:
        raise TypeError("memory of a space holds plain values; Python objects cannot be evicted")
    if dtype.itemsize == 0:
        raise TypeError(f"the type {dtype} has no size; give one, such as 'S16'")


def _shape(shape: Any) -> Tuple[int, ...]:
    try:
        lengths: Tuple[int, ...] = (operator.index(shape),)
    except TypeError:
        lengths = tuple(operator.index(length) for length in shape)
    if any(length < 0 for length in lengths):
        raise ValueError(f"a shape has no negative lengths: {lengths}")
    return lengths


def _bytes(shape: Tuple[int, ...], dtype: Any) -> int:
    count = dtype.itemsize
    for length in shape:
        count *= length
    return int(count)

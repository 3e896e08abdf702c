# SPDX-License-Identifier: Apache-2.0
# Copyright the Aquifer authors

"""Indices of items as ``_native`` takes them: the bytes of 64-bit numbers."""

import array
from typing import Any

from ._errors import new


def packed(indices: Any) -> bytes:
    """Packs a sequence of numbers, or an integer array of NumPy without negative numbers."""
    if hasattr(indices, "__array_interface__"):
        import numpy

        if indices.dtype.kind not in "iu":
            raise TypeError(f"indices are integers, not {indices.dtype}")
        if indices.size and indices.min() < 0:
            raise _refused("indices are integers from 0 on")
        numbers: bytes = numpy.ascontiguousarray(indices, dtype=numpy.uint64).tobytes()
        return numbers
    try:
        # By its items: an array takes the bytes of a bytes-like object for its own.
        return array.array("Q", iter(indices)).tobytes()
    except OverflowError:
        raise _refused("indices are integers from 0 on, below 2**64") from None


def _refused(why: str) -> Exception:
    return new("OutOfRangeError", why, None, [])

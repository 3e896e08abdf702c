# SPDX-License-Identifier: Apache-2.0
# Copyright the Aquifer authors

"""Whether the bytes of a buffer are those of a mapping. What owns them need not say so: arrays of other libraries
refer to memory of a mapping, too. So their address decides."""

import array
import mmap
import sys
from typing import Optional

# These have memory of their own.
_APART = (bytes, bytearray, array.array, mmap.mmap)


def is_possible(view: memoryview, address: int, length: int) -> bool:
    """Whether bytes of ``view``, of which there is one, are among the ``length`` bytes at ``address``."""
    if isinstance(view.obj, _APART):
        return False
    start = _address(view)
    # Unknown only for memory that cannot be written to, in a program without NumPy.
    return start is None or (start < address + length and address < start + view.nbytes)


def _address(view: memoryview) -> Optional[int]:
    import ctypes

    if not view.readonly:
        return ctypes.addressof(ctypes.c_char.from_buffer(view))
    numpy = sys.modules.get("numpy")
    return None if numpy is None else int(numpy.frombuffer(view, numpy.uint8).__array_interface__["data"][0])

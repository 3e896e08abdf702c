# SPDX-License-Identifier: Apache-2.0
# Copyright the Aquifer authors

"""A budget of DRAM over tiers."""

import json
import operator
import os
from typing import Any, Dict, Iterable, Optional, Union

from . import _native
from ._mapping import Mapping
from ._status import Histogram, histogram


class Space(_native.Space):
    """A budget of DRAM, the tiers that store what does not fit, and the mappings of both.

    Settings are written as for ``aquifer run``. ``dram``: 16 MiB to 1 TiB, as ``"4GiB"`` or a number of bytes.
    ``tiers``: one to four, the fastest first. ``policy``: which policy chooses the blocks to evict. ``block_size``:
    a power of two from ``"4KiB"`` to ``"2MiB"``, or ``"auto"``. ``named_in``: the directory of its named mappings.

    ``without_system_calls``: each thread fetches what it touches itself, instead of a thread of the space, which is
    much faster. In return, a system call that is given evicted memory fails with EFAULT: an ``OSError`` of
    ``file.write(array)``, ``array.tofile``, ``socket.send`` or ``file.readinto``, for example. Copy first, as with
    ``bytes(view)``, or pin the range. A thread that touches the memory must not block SIGBUS, and nothing may replace
    the handler of SIGBUS after the first space was opened: enable ``faulthandler`` before that.
    """

    def __new__(
        cls,
        dram: Union[int, str],
        tiers: Union[str, Iterable[str]],
        *,
        policy: Optional[str] = None,
        block_size: Union[int, str, None] = None,
        named_in: Union[str, "os.PathLike[str]", None] = None,
        without_system_calls: bool = False,
    ) -> "Space":
        tiers = [tiers] if isinstance(tiers, str) else list(tiers)
        size = None if block_size is None else _size(block_size)
        directory = None if named_in is None else os.fspath(named_in)
        return super().__new__(cls, _size(dram), tiers, policy, size, directory, without_system_calls)

    def map(self, size: int) -> Mapping:
        """Maps ``size`` bytes of zeros, 1 byte to 1 TiB."""
        return Mapping(self, size)

    def map_named(self, name: str, size: Optional[int] = None) -> Mapping:
        """Opens the named mapping ``name``, whose contents are in a file of ``named_in`` and were synced there.

        With a size, creates it if there is none; without, it must exist.
        """
        return Mapping(self, size, name)

    def statistics(self) -> Dict[str, Any]:
        """Everything that the space has counted, with the names of ``aquifer run --stats-json``."""
        counted: Dict[str, Any] = json.loads(self.statistics_json())
        return counted

    def histogram(self) -> Histogram:
        """How much memory is how hot. Costs the same for any size."""
        return histogram(self.classes())

    def __enter__(self) -> "Space":
        return self

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        _native_close(self, kind is not None)

    def __reduce__(self) -> Any:
        raise TypeError("a space cannot be pickled or copied: it belongs to its process; open one in each process")

    def __repr__(self) -> str:
        return "<aquifer.Space, closed>" if self.closed else "<aquifer.Space>"


def _native_close(space: Space, is_failing: bool) -> None:
    try:
        space.close()
    except BufferError:
        # The traceback of the exception that ends the block still refers to what is in use.
        if not is_failing:
            raise


def _size(size: Union[int, str]) -> str:
    if isinstance(size, str):
        return size
    if isinstance(size, bool) or not hasattr(size, "__index__"):
        raise TypeError(f"a size is a number of bytes or text such as '1GiB', not {type(size).__name__}")
    return str(operator.index(size))

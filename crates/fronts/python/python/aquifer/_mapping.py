# SPDX-License-Identifier: Apache-2.0
# Copyright the Aquifer authors

"""Memory of a space."""

import asyncio
import operator
from typing import TYPE_CHECKING, Any, Iterable, List, Optional, Tuple, Union

from . import _native, _overlap, _waiting
from ._errors import UnalignedError, new
from ._indices import packed
from ._status import Histogram, State, StatusRun, TemperatureRun, histogram

if TYPE_CHECKING:
    from ._space import Space

# What `write` copies at a time. A multiple of every block size up to 2 MiB.
_WRITE_BYTES = 4 << 20


class Mapping(_native.Mapping, _native.Exporter):
    """Memory of a space: zeros at first, made by ``Space.map``; or what is in a file, by ``Space.map_named``.

    Use it as a buffer (``memoryview(mapping)``), as an array (``array``), or by copies (``read``, ``write``,
    slices). Ranges are ``start, stop`` in bytes; without them, the whole mapping.
    """

    _space: "Space"

    def __new__(cls, space: "Space", size: Optional[int], name: Optional[str] = None) -> "Mapping":
        if size is not None and not 0 <= operator.index(size) < 1 << 64:
            message = f"a mapping cannot have {size} bytes; ask for 1 byte to 1 TiB"
            raise new("MappingSizeError", message, None, [("bytes", operator.index(size))])
        this = super().__new__(cls, space, size, name)
        this._space = space
        return this

    @property
    def space(self) -> "Space":
        """The space whose memory this is."""
        return self._space

    def array(self, dtype: Any = float, shape: Any = None, offset: int = 0, order: str = "C") -> Any:
        """A NumPy array over the memory from ``offset`` on; without a shape, over all of the rest."""
        from . import _arrays

        return _arrays.over(self, dtype, shape, offset, order)

    def read(self, start: int = 0, stop: Optional[int] = None) -> bytes:
        """Copies a range. Raises LostError where a load would get SIGBUS."""
        return self.copied(start, stop, False)

    def read_in_place(self, start: int = 0, stop: Optional[int] = None) -> bytes:
        """Copies a range without making it resident, unless the same pages are read this way again soon."""
        return self.copied(start, stop, True)

    def write(self, start: int, data: Any) -> None:
        """Overwrites the bytes from ``start`` on with those of a bytes-like object."""
        self._overwrite(start, data, False)

    def write_in_place(self, start: int, data: Any) -> None:
        """As ``write``, for a few bytes: changes evicted pages in the tier, unless they are touched again soon."""
        self._overwrite(start, data, True)

    def _overwrite(self, start: int, data: Any, in_place: bool) -> None:
        view = memoryview(data)
        if not view.c_contiguous:
            raise BufferError("the data are not contiguous; copy them first, for example with numpy.ascontiguousarray")
        view = view.cast("B") if view.nbytes else memoryview(b"")
        if len(view) > _WRITE_BYTES and _overlap.is_possible(view, self.address, len(self)):
            # In several steps, a step would overwrite what a later one is to copy.
            view = memoryview(bytes(view))
        stop = start + len(view)
        if start < 0 or stop > len(self):
            fields = [("start", start), ("stop", stop), ("length", len(self))]
            message = f"the range {start}..{stop} is not within the mapping, which has {len(self)} bytes"
            raise new("OutOfRangeError", message, None, fields)
        for at in range(0, max(len(view), 1), _WRITE_BYTES):
            self.overwrite(start + at, bytes(view[at : at + _WRITE_BYTES]), in_place)

    def gather(self, indices: Any, size: int) -> bytearray:
        """Copies the items with these indices, ``size`` bytes each, with the tier's reads of them overlapped."""
        return self.gathered(0, size, size, packed(indices))

    async def gather_async(self, indices: Any, size: int) -> bytearray:
        """As ``gather``, while other tasks of the event loop run."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(None, self.gathered, 0, size, size, packed(indices))

    def prefetch(self, start: Any = 0, stop: Optional[int] = None, *, write: bool = False) -> None:
        """Fetches a range in the background, or the items ``prefetch(indices, size)``. Never waits for the tier.

        A hint. Of ranges, the space remembers the last 32; of items, a mapping has up to 4,096 runs of adjacent pages
        under way. A call's further runs are left out, and the oldest of earlier calls give way to new ones.
        """
        if hasattr(start, "__index__") and getattr(start, "ndim", 0) == 0:
            self.prefetch_range(start, stop, write)
            return
        if stop is None or write:
            raise TypeError("items are prefetched for reading, with their size: prefetch(indices, size)")
        self.prefetch_items(self._space, stop, packed(start))

    async def fetch(self, start: int = 0, stop: Optional[int] = None) -> None:
        """Makes the range resident while other tasks of the event loop run."""
        await _waiting.arrival(self.fetching(start, stop))

    def status(self, start: int = 0, stop: Optional[int] = None) -> List[StatusRun]:
        """Where the range is."""
        runs = self.status_runs(start, stop)
        return [StatusRun(start, stop, State(state), clean, level) for start, stop, state, clean, level in runs]

    def temperature(self, start: int = 0, stop: Optional[int] = None) -> List[TemperatureRun]:
        """How hot the range is. Memory without contents is left out."""
        return [TemperatureRun(*run) for run in self.temperature_runs(start, stop)]

    def histogram(self, start: int = 0, stop: Optional[int] = None) -> Histogram:
        """How much of the range is how hot."""
        return histogram(self.classes(start, stop))

    def __getitem__(self, key: Union[int, slice]) -> Union[int, bytes]:
        start, stop = self._range(key)
        found = self.read(start, stop)
        return found if isinstance(key, slice) else found[0]

    def __setitem__(self, key: Union[int, slice], value: Any) -> None:
        start, stop = self._range(key)
        data = value if isinstance(key, slice) else bytes((value,))
        if memoryview(data).nbytes != stop - start:
            raise ValueError(f"{memoryview(data).nbytes} bytes do not fit a range of {stop - start}")
        self.write(start, data)

    def _range(self, key: Union[int, slice]) -> Tuple[int, int]:
        if isinstance(key, slice):
            start, stop, step = key.indices(len(self))
            if step != 1:
                raise UnalignedError("a mapping has slices without a step; use mapping.array('B')[...]")
            return start, max(start, stop)
        at = range(len(self))[key]
        return at, at + 1

    def __enter__(self) -> "Mapping":
        return self

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        try:
            self.close()
        except BufferError:
            # The traceback of the exception that ends the block still refers to what is in use.
            if kind is None:
                raise

    def __iter__(self) -> Iterable[int]:
        raise TypeError("a mapping is not iterated over byte by byte; use memoryview(mapping) or mapping.array('B')")

    def __reduce__(self) -> Any:
        raise TypeError("a mapping cannot be pickled or copied: it belongs to its process; send the bytes instead")

    def __repr__(self) -> str:
        return f"<aquifer.Mapping of {len(self)} bytes{', closed' if self.closed else ''}>"

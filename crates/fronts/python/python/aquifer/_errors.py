# SPDX-License-Identifier: Apache-2.0
# Copyright the Aquifer authors

"""The exceptions: one for each error of the Rust crate, each also of the built-in class that a program expects.

``_native`` makes them by name, with ``new``.
"""

import errno as _errno
from typing import List, Optional, Tuple


class Error(Exception):
    """Something that a space refuses or cannot do. The text names the cause and the remedy."""


class OpenError(Error):
    """A space could not be opened."""


class SettingError(OpenError, ValueError):
    """A setting of a space is not valid: the budget, a tier's description, the policy, or the block size."""


class StartError(OpenError, OSError):
    """The space could not be started. ``probe()`` says whether this process can have spaces."""


class TierError(OpenError, OSError):
    """A tier could not be opened."""


class BeyondBudgetError(Error, ValueError):
    """More was asked for than would stay in DRAM until it is used. Ask for parts, one after the other."""

    asked_bytes: int
    bytes_max: int


class BlockSizeError(Error, ValueError):
    """A block has a power of two of bytes, from 4096 to 2 MiB."""

    bytes: int


class NamedError(Error, OSError):
    """A named mapping could not be opened or synced."""


class AlreadyOpenError(NamedError):
    """The named mapping is open already, in this process or in another one."""


class BadNameError(NamedError, ValueError):
    """Not a name for a mapping, or the space has no directory (``named_in``) for them."""


class DamagedError(NamedError):
    """The file of the named mapping is not as it was written: damaged, cut off, foreign, or of another version."""


class FullDiskError(NamedError):
    """The file system has no room. The file is as before, and the sync can be repeated."""


class NotFoundError(NamedError, FileNotFoundError):
    """There is no mapping with this name. Create it with a size."""


class NotNamedError(NamedError, ValueError):
    """The mapping has no name, and so no file."""


class OtherSizeError(NamedError, ValueError):
    """The named mapping exists with another size."""

    bytes: int
    asked_bytes: int


class RefusedError(NamedError, PermissionError):
    """Another user owns the file or the directory, or can read or change it."""


class ReplacedError(NamedError):
    """The file was removed or replaced while it was open. Nothing can be synced to it."""


class ClosedError(Error, ValueError):
    """The mapping or the space is closed."""


class EmptyRangeError(Error, ValueError):
    """The range has no bytes. Reads and writes of no bytes succeed."""


class EndedError(Error, RuntimeError):
    """The space cannot go on. Close it; what it contained is lost."""


class ForkedError(Error, RuntimeError):
    """The space belongs to the process that forked this one. Start processes with the method 'spawn'."""


class InUseError(Error, BufferError):
    """What should be closed is in use: memoryviews or arrays over a mapping exist, or mappings of a space."""


class KernelError(Error, OSError):
    """The kernel refuses, with ``errno``."""


class LostError(Error, OSError):
    """A tier has lost bytes of the range. Discard it, then write it again."""


class MappingSizeError(Error, ValueError):
    """A mapping has at least one byte, and at most 1 TiB."""

    bytes: int


class NoAnswerError(Error, TimeoutError):
    """The tier does not answer a thread of the space, whose memory is not given back."""


class NoRoomError(Error, MemoryError):
    """Nothing more can be written back. Give the tier more room, or close something."""


class OutOfRangeError(Error, IndexError):
    """The range ends outside the mapping, or ends before it begins."""

    start: int
    stop: int
    length: int


class PinnedError(Error, BufferError):
    """The range is pinned, in whole or in part. Release the pin first."""


class PinnedTooMuchError(Error, MemoryError):
    """More would be pinned than ``bytes_max``, or there are 1,024 pins. Release a pin first."""

    bytes_max: int


class UnalignedError(Error, ValueError):
    """The range does not begin and end where a page does."""

    start: int
    stop: int
    unit: int


# The errno of each exception that is an OSError, where the error does not bring its own.
_ERRNOS = {
    "AlreadyOpenError": _errno.EBUSY,
    "BadNameError": _errno.EINVAL,
    "DamagedError": _errno.EIO,
    "FullDiskError": _errno.ENOSPC,
    "NamedError": _errno.EIO,
    "NotFoundError": _errno.ENOENT,
    "NotNamedError": _errno.EINVAL,
    "OtherSizeError": _errno.EEXIST,
    "RefusedError": _errno.EACCES,
    "ReplacedError": _errno.ESTALE,
    "LostError": _errno.EIO,
    "NoAnswerError": _errno.ETIMEDOUT,
    "StartError": _errno.ENOSYS,
    "TierError": _errno.EIO,
}


def new(name: str, message: str, errno: Optional[int], fields: List[Tuple[str, int]]) -> Error:
    """An exception of the class ``name``, with fields as attributes."""
    errno = _ERRNOS.get(name) if errno is None else errno
    arguments = (message,) if errno is None else (errno, message)
    error: Error = globals()[name](*arguments)
    for field, value in fields:
        setattr(error, field, value)
    return error

# SPDX-License-Identifier: Apache-2.0
# Copyright the Aquifer authors

"""Far memory: buffers and NumPy arrays larger than a budget of DRAM.

A ``Space`` is a budget of DRAM over tiers, which store what does not fit. A ``Mapping`` is memory of a space: a
buffer that is used like any other, whose blocks move between DRAM and the tiers when they are touched. Hints say what
will be touched next, and what will not.

A load or store of memory that a tier has lost gets SIGBUS, which ends the process; it never reads other bytes than
were written. The calls that copy (``read``, ``write``, ``gather``) raise LostError instead.
"""

import os as _os

from . import _native
from ._arrays import empty, gather, gather_async, mapping_of, memmap
from ._errors import (
    AlreadyOpenError,
    BadNameError,
    BeyondBudgetError,
    BlockSizeError,
    ClosedError,
    DamagedError,
    EmptyRangeError,
    EndedError,
    Error,
    ForkedError,
    FullDiskError,
    InUseError,
    KernelError,
    LostError,
    MappingSizeError,
    NamedError,
    NoAnswerError,
    NoRoomError,
    NotFoundError,
    NotNamedError,
    OpenError,
    OtherSizeError,
    OutOfRangeError,
    PinnedError,
    PinnedTooMuchError,
    RefusedError,
    ReplacedError,
    SettingError,
    StartError,
    TierError,
    UnalignedError,
)
from ._mapping import Mapping
from ._native import CLASS_NAMES, MissRatioCurve, Pin, probe
from ._space import Space
from ._status import Histogram, State, StatusRun, TemperatureRun

__all__ = [
    "CLASS_NAMES",
    "AlreadyOpenError",
    "BadNameError",
    "BeyondBudgetError",
    "BlockSizeError",
    "ClosedError",
    "DamagedError",
    "EmptyRangeError",
    "EndedError",
    "Error",
    "ForkedError",
    "FullDiskError",
    "Histogram",
    "InUseError",
    "KernelError",
    "LostError",
    "Mapping",
    "MappingSizeError",
    "MissRatioCurve",
    "NamedError",
    "NoAnswerError",
    "NoRoomError",
    "NotFoundError",
    "NotNamedError",
    "OpenError",
    "OtherSizeError",
    "OutOfRangeError",
    "Pin",
    "PinnedError",
    "PinnedTooMuchError",
    "RefusedError",
    "ReplacedError",
    "SettingError",
    "Space",
    "StartError",
    "State",
    "StatusRun",
    "TemperatureRun",
    "TierError",
    "UnalignedError",
    "empty",
    "gather",
    "gather_async",
    "mapping_of",
    "memmap",
    "probe",
]

# In each forked child, so that its copies of arrays never read what it maps later.
_os.register_at_fork(after_in_child=_native.explain_touches)

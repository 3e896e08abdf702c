# SPDX-License-Identifier: Apache-2.0
# Copyright the Aquifer authors

"""What a space says about its memory."""

import enum
from typing import List, NamedTuple, Optional, Tuple


class State(enum.Enum):
    """Where some memory was at one moment."""

    #: Never written to, or discarded: it reads as zeros, and takes neither DRAM nor room in a tier.
    EMPTY = "empty"
    #: On its way from the tier.
    FETCHING = "fetching"
    #: Lost by a tier. A load or store gets SIGBUS.
    LOST = "lost"
    #: On its way within DRAM, or to the tier.
    MOVING = "moving"
    #: In DRAM, at its address.
    RESIDENT = "resident"
    #: In DRAM, not at its address: a touch brings it back without a transfer.
    STANDBY = "standby"
    #: In a tier only.
    STORED = "stored"


class StatusRun(NamedTuple):
    """Adjacent memory with one status."""

    start: int
    stop: int
    state: State
    #: For resident memory and standby: true if the tier is known to have the same bytes.
    is_clean: Optional[bool]
    #: For stored memory: the level of the chain of tiers. The fastest is 0.
    level: Optional[int]


class TemperatureRun(NamedTuple):
    """Adjacent memory with one temperature: 0 is cold, 255 the hottest. Only the order has a meaning."""

    start: int
    stop: int
    temperature: int


class Histogram(NamedTuple):
    """Bytes with contents, by class of temperature (``CLASS_NAMES``)."""

    #: In DRAM, at their addresses.
    resident_bytes: Tuple[int, ...]
    #: Elsewhere: on standby, in a tier, or on their way.
    away_bytes: Tuple[int, ...]


def histogram(classes: Tuple[List[int], List[int]]) -> Histogram:
    """The histogram of what ``_native`` returns."""
    resident, away = classes
    return Histogram(tuple(resident), tuple(away))

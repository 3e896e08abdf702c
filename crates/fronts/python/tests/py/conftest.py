# SPDX-License-Identifier: Apache-2.0
# Copyright the Aquifer authors

"""Spaces over small tiers, and waits, for all tests."""

import time

import pytest

import aquifer

MIB = 1 << 20
WAIT_MAX_S = 120


@pytest.fixture
def space():
    """The smallest budget, over memory."""
    return aquifer.Space(dram="16MiB", tiers=["dram:size=64MiB"], block_size="64KiB")


@pytest.fixture
def wait_until():
    """Waits for what happens in the background."""

    def wait(what, is_so):
        end = time.monotonic() + WAIT_MAX_S
        while not is_so():
            assert time.monotonic() < end, f"{what}: not within {WAIT_MAX_S} s"
            time.sleep(0.005)

    return wait


@pytest.fixture
def evict(wait_until):
    """Evicts all of a mapping to its tier, and repeats the hint, which may be dropped."""

    def all_of(mapping):
        asked = [0.0]

        def is_stored():
            if time.monotonic() - asked[0] > 8:
                asked[0] = time.monotonic()
                mapping.evict()
            return all(run.state == aquifer.State.STORED for run in mapping.status())

        wait_until("eviction", is_stored)
        # The eviction looks at the range once more, and would take back what arrives meanwhile.
        time.sleep(0.2)

    return all_of

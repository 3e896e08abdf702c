# SPDX-License-Identifier: Apache-2.0
# Copyright the Aquifer authors

"""Hints do what they say, gathers copy what indexing copies, and coroutines wait without stopping others."""

import asyncio
import threading
import time

import numpy
import pytest

import aquifer

MIB = 1 << 20
IN_DRAM = (aquifer.State.STANDBY, aquifer.State.RESIDENT)


def filled(space, size):
    mapping = space.map(size)
    mapping.array("u8")[:] = numpy.arange(size // 8)
    return mapping


def in_dram(mapping, start, stop):
    return all(run.state in IN_DRAM for run in mapping.status(start, stop))


def test_prefetched_memory_is_in_dram(space, evict, wait_until):
    mapping = filled(space, 4 * MIB)
    evict(mapping)
    assert not mapping.ready(0, 8) and mapping.status()[0].level == 0
    mapping.prefetch(0, MIB)
    wait_until("arrival", lambda: in_dram(mapping, 0, MIB))
    evict(mapping)
    mapping.prefetch(numpy.array([30, 3, 31]), 65536)
    wait_until("arrival of items", lambda: all(in_dram(mapping, at << 16, (at + 1) << 16) for at in (3, 30, 31)))
    assert mapping.status(4 << 16, 5 << 16)[0].state == aquifer.State.STORED
    assert mapping.read(8, 16) == (1).to_bytes(8, "little") and mapping.ready(8, 16)


def test_prefetched_items_are_left_to_the_touch(space, evict, wait_until):
    """To put them at their addresses, a prefetch would have to wait for the tier where they were evicted again."""
    mapping = filled(space, 4 * MIB)
    evict(mapping)
    mapping.prefetch([3], 65536)
    wait_until("arrival", lambda: in_dram(mapping, 3 << 16, 4 << 16))
    for _ in range(3):
        mapping.prefetch([3, 5], 65536)
    assert not mapping.ready(3 << 16, 4 << 16)
    assert mapping.status(3 << 16, 4 << 16)[0].state == aquifer.State.STANDBY
    assert mapping.array("u8")[3 << 13] == 3 << 13


def test_a_prefetch_never_waits_for_the_tier(evict):
    """While a slow read keeps the worker busy, requests are repeated in vain. The next prefetch read their items
    itself, half a second for each."""
    slow = "failing:every=1,on=read,times=0,delay=500ms:dram:size=64MiB"
    space = aquifer.Space(dram="16MiB", tiers=slow, block_size="64KiB")
    mapping = filled(space, 2 << 16)
    evict(mapping)
    for item in (0, 1, 0, 1):
        began = time.monotonic()
        mapping.prefetch([item], 65536)
        mapping.prefetch(item << 16, (item + 1) << 16)
        assert time.monotonic() - began < 0.4
        time.sleep(0.1)
    assert mapping.read(65536, 65544) == (1 << 13).to_bytes(8, "little")


def test_a_prefetch_of_more_runs_than_the_queue_takes_leaves_out_the_last(evict, wait_until):
    space = aquifer.Space(dram="320MiB", tiers="dram:size=64MiB", block_size="4KiB")
    mapping = filled(space, 40 * MIB)
    evict(mapping)
    taken = 4096
    pages = range(0, len(mapping) // 4096, 2)
    assert len(pages) > taken and len(pages) * 4096 <= space.prefetch_bytes_max

    def have_arrived():
        # Again, because requests may be dropped.
        mapping.prefetch(pages, 4096)
        return all(in_dram(mapping, page * 4096, (page + 1) * 4096) for page in pages[:taken])

    wait_until("arrival of those taken", have_arrived)
    time.sleep(0.3)
    assert all(run.state == aquifer.State.STORED for run in mapping.status(pages[taken] * 4096))
    assert mapping.read(pages[-1] * 4096, pages[-1] * 4096 + 8) == (pages[-1] * 512).to_bytes(8, "little")


def test_a_pin_keeps_memory_until_it_is_released(space):
    mapping = filled(space, 4 * MIB)
    with mapping.pin(0, 100) as pin:
        assert (pin.start, pin.stop) == (0, 100) and mapping.ready(0, 100)
        for refused in (mapping.evict, mapping.discard, mapping.close):
            with pytest.raises(aquifer.PinnedError):
                refused()
    pin.release()
    mapping.close()


def test_what_is_known_of_memory_is_typed(space, wait_until):
    mapping = filled(space, 4 * MIB)
    mapping.pattern("random", 0, 2 * MIB)
    mapping.stream(0, MIB)
    assert sum(run.stop - run.start for run in mapping.status()) == 4 * MIB
    assert all(0 <= run.temperature <= 255 for run in mapping.temperature())
    for take in (mapping.histogram, space.histogram):
        histogram = take()
        assert len(histogram.resident_bytes) == len(histogram.away_bytes) == len(aquifer.CLASS_NAMES)
        # The last fault may still be in progress: the store that caused it goes on before it is counted.
        wait_until("counting", lambda: sum(take().resident_bytes + take().away_bytes) == 4 * MIB)
    assert space.prefetch_bytes_max == MIB and space.pin_bytes_max == 8 * MIB
    assert isinstance(space.serves_system_calls, bool) and mapping.space is space


@pytest.mark.parametrize("dtype", ["u1", "f4", "i8", [("key", "i4"), ("value", "f8")]])
def test_gathered_rows_are_those_of_indexing(space, evict, dtype):
    mapping = filled(space, 4 * MIB)
    mapping.array("u1")[:] = numpy.random.default_rng(1).integers(0, 100, 4 * MIB)
    array = mapping.array(dtype, (3000, 11), offset=32)
    expected = numpy.array(array)
    evict(mapping)
    for indices in ([5, -1, 2999, 5], numpy.array([[1, 2], [-3000, 7]], "i2"), numpy.array([9], "u8"), [], 8):
        found = aquifer.gather(array, indices)
        assert found.dtype == array.dtype and found.tobytes() == expected[numpy.asarray(indices, "i8")].tobytes()
        assert found.shape == expected[numpy.asarray(indices, "i8")].shape and found.flags.writeable
    assert aquifer.gather(array[10::3], [2]).tobytes() == expected[16].tobytes()
    assert aquifer.gather(array[:, 4], [7, 70]).tobytes() == expected[[7, 70], 4].tobytes()
    owner, start, stop = aquifer.mapping_of(array[10:20])
    row = array.strides[0]
    assert owner is mapping and (start, stop) == (32 + 10 * row, 32 + 20 * row)


def test_numbers_of_numpy_are_numbers(space, evict, wait_until):
    array = aquifer.empty((10_000, 16), "u2", space=space)
    array[:] = numpy.arange(10_000)[:, None]
    for kind in ("i1", "i2", "u1", ">i4", "u8"):
        # More rows than a narrow index can count.
        indices = numpy.array([7, 100, 7], kind)
        assert aquifer.gather(array, indices)[:, 3].tolist() == [7, 100, 7]
    assert aquifer.gather(array, numpy.array([-1, -128], "i1"))[:, 3].tolist() == [9_999, 9_872]
    other = aquifer.Space(numpy.int64(16 * MIB), "dram:size=64MiB", block_size=numpy.int32(65536))
    mapping = other.map(numpy.int64(4 * MIB))
    mapping.write(0, b"\x07" * 4 * MIB)
    evict(mapping)
    # A range, not the items with the index MIB.
    mapping.prefetch(numpy.int64(MIB), numpy.int64(2 * MIB))
    wait_until("arrival", lambda: in_dram(mapping, MIB, 2 * MIB))


def test_bytes_are_a_sequence_of_indices(space):
    mapping = space.map(MIB)
    mapping.write(0, bytes(range(200)))
    for indices in (b"\x05\0\0\0\0\0\0\x09", bytearray(b"\x05\0\0\0\0\0\0\x09"), iter([5, 0, 0, 0, 0, 0, 0, 9])):
        assert mapping.gather(indices, 1) == b"\x05\0\0\0\0\0\0\x09"


def test_what_cannot_be_gathered_says_so(space):
    array = aquifer.empty((100, 10), "f8", space=space)
    for indices in ([100], [-101], numpy.array([1 << 63], "u8")):
        with pytest.raises(IndexError):
            aquifer.gather(array, indices)
    for refused in (
        lambda: aquifer.gather(numpy.zeros(10), [1]),
        lambda: aquifer.gather([1, 2], [1]),
        lambda: aquifer.gather(array, [1.5]),
        lambda: aquifer.gather(array[::-1], [1]),
        lambda: aquifer.gather(array.T, [1]),
        lambda: aquifer.gather(numpy.ma.masked_array(array, True), [1]),
        lambda: aquifer.gather(array, array[:, 0] > 0),
        lambda: aquifer.mapping_of(numpy.zeros(10)),
        lambda: space.map(MIB).gather(numpy.array([1.0]), 8),
        lambda: space.map(MIB).gather(numpy.array([True]), 8),
    ):
        with pytest.raises(TypeError):
            refused()
    mapping = space.map(MIB)
    # Refused before memory for the items is allocated.
    for indices, size in (([0], 1 << 60), ([0, MIB], 1 << 36), ([MIB], 1), ([0, 1 << 63], 8), ([-1], 4), ([1 << 64], 1), (numpy.array([-1]), 1)):
        with pytest.raises(aquifer.OutOfRangeError):
            mapping.gather(indices, size)


def test_coroutines_fetch_and_gather(evict):
    space = aquifer.Space(dram="16MiB", tiers="emulated:xl-flash-slc,size=64MiB", block_size="4KiB")
    mapping = filled(space, 4 * MIB)
    evict(mapping)
    array = mapping.array("u8")

    async def look_up(index):
        await mapping.fetch(index * 8, index * 8 + 8)
        return int(array[index])

    async def everything():
        indices = [at * 7919 % array.size for at in range(300)]
        found = await asyncio.gather(*(look_up(index) for index in indices))
        gathered = await aquifer.gather_async(array, indices)
        items = await mapping.gather_async(indices, 8)
        return indices, found, gathered.tolist(), numpy.frombuffer(items, "u8").tolist()

    indices, *found = asyncio.run(everything())
    assert found == [indices] * 3


def test_a_fetch_that_is_given_up_harms_nobody(evict):
    slow = "failing:every=1,on=read,times=0,delay=50ms:dram:size=64MiB"
    space = aquifer.Space(dram="16MiB", tiers=slow, block_size="64KiB")
    mapping = filled(space, 65536)
    evict(mapping)

    async def give_up():
        task = asyncio.ensure_future(mapping.fetch(0, 4096))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(give_up())
    assert mapping.read(8, 16) == (1).to_bytes(8, "little")


def test_other_threads_run_while_a_call_waits(evict):
    """The tier takes half a second for each read. A thread that does not need it continues to count meanwhile."""
    slow = "failing:every=1,on=read,times=0,delay=500ms:dram:size=64MiB"
    space = aquifer.Space(dram="16MiB", tiers=slow, block_size="64KiB")
    mapping = filled(space, 65536)
    evict(mapping)
    counts, is_done = [0], threading.Event()

    def read():
        mapping.read(0, 8)
        is_done.set()

    thread = threading.Thread(target=read)
    thread.start()
    while not is_done.wait(0.001):
        counts[0] += 1
    thread.join()
    assert counts[0] > 5

# SPDX-License-Identifier: Apache-2.0
# Copyright the Aquifer authors

"""Tiers that fail in mid-batch, that lie, and that are slow, and threads that share a range."""

import asyncio
import threading

import numpy
import pytest

import aquifer

MIB = 1 << 20
BLOCK = 64 << 10


def filled(space, size):
    mapping = space.map(size)
    mapping.array("u8")[:] = numpy.arange(size // 8)
    return mapping


def word_at(at):
    return (at // 8).to_bytes(8, "little")


def test_fetches_of_a_failing_tier_end_with_bytes_or_an_error(evict):
    """It fails in the middle of a batch of coroutines."""
    space = aquifer.Space(dram="16MiB", tiers="failing:after=60,on=read:dram:size=64MiB", block_size="64KiB")
    mapping = filled(space, 8 * MIB)
    evict(mapping)

    async def look_up(at):
        try:
            await mapping.fetch(at, at + 4096)
            # It may have been evicted again, and lost then.
            assert mapping.read(at, at + 8) == word_at(at)
            return True
        except aquifer.LostError:
            return False

    async def everything():
        return await asyncio.gather(*(look_up(at) for at in range(0, 8 * MIB, BLOCK)))

    found = asyncio.run(everything())
    assert True in found and False in found
    mapping.discard()
    mapping.write(0, b"again")
    assert mapping.read(0, 8) == b"again\0\0\0"


@pytest.mark.parametrize("is_async", [False, True])
def test_a_gather_of_a_failing_tier_is_an_error(evict, is_async):
    space = aquifer.Space(dram="16MiB", tiers="failing:after=60,on=read:dram:size=64MiB", block_size="64KiB")
    mapping = filled(space, 8 * MIB)
    evict(mapping)
    array = mapping.array("u8", (8 * MIB // BLOCK, BLOCK // 8))
    with pytest.raises(aquifer.LostError):
        if is_async:
            asyncio.run(aquifer.gather_async(array, numpy.arange(len(array))))
        else:
            aquifer.gather(array, numpy.arange(len(array)))
    assert any(run.state == aquifer.State.LOST for run in mapping.status()) or space.statistics()["errors"] > 0


def test_a_tier_that_lies_sometimes_never_gives_wrong_bytes(evict):
    space = aquifer.Space(dram="16MiB", tiers="failing:corrupt=2:dram:size=64MiB", block_size="4KiB")
    mapping = filled(space, 2 * MIB)
    evict(mapping)
    good = 0
    for at in range(0, 2 * MIB, 4096):
        try:
            assert mapping.read_in_place(at, at + 8) == word_at(at)
            good += 1
        except aquifer.LostError:
            pass
    assert good > 0


def test_a_tier_that_always_lies_is_an_error_of_every_call(evict):
    space = aquifer.Space(dram="16MiB", tiers="failing:corrupt=1:dram:size=64MiB", block_size="4KiB")
    mapping = filled(space, MIB)
    evict(mapping)
    array = mapping.array("u8", (256, 512))
    for number, call in enumerate(
        (
            mapping.read,
            mapping.read_in_place,
            lambda start, stop: asyncio.run(mapping.fetch(start, stop)),
            lambda start, stop: mapping.gather([start // 8], 8),
            lambda start, stop: aquifer.gather(array, [start // 4096]),
            lambda start, stop: asyncio.run(mapping.gather_async([start // 8], 8)),
            mapping.pin,
            lambda start, stop: mapping.write(start, b"a"),
        )
    ):
        with pytest.raises(aquifer.LostError):
            call(number * 4096, number * 4096 + 8)
    assert space.statistics()["errors"] > 0


def test_a_slow_tier_holds_up_nobody_who_does_not_need_it(evict):
    space = aquifer.Space(
        dram="16MiB", tiers="failing:every=1,on=read,times=0,delay=300ms:dram:size=64MiB", block_size="64KiB"
    )
    mapping = filled(space, BLOCK)
    evict(mapping)
    other, order = filled(space, BLOCK), []

    async def look_up(source, at, name):
        await source.fetch(at, at + 8)
        assert source.read(at, at + 8) == word_at(at)
        order.append(name)

    async def both():
        await asyncio.gather(look_up(mapping, 0, "slow"), look_up(other, BLOCK - 8, "resident"))

    asyncio.run(both())
    assert order == ["resident", "slow"]


def test_threads_share_a_range(space):
    """One overwrites it, one evicts and prefetches it, and others read it in every way: each byte was written once."""
    mapping = space.map(24 * MIB)
    values, wrong, is_over = range(1, 40), [], threading.Event()
    mapping.write(0, b"\x01" * MIB)
    array = mapping.array("u1", (MIB,))
    readers = (
        lambda: mapping.read(5000, 200_000),
        lambda: mapping.read_in_place(5000, 9000),
        lambda: mapping.gather(range(7, 200), 4096),
        lambda: array[5000:200_000].tobytes(),
        lambda: aquifer.gather(array, range(3, MIB, 50_000)).tobytes(),
    )

    def read(call):
        while not is_over.is_set():
            try:
                found = set(call())
            except Exception as failure:
                found = {repr(failure)}
            if not found <= set(values):
                wrong.append(found)
                return

    def hint():
        while not is_over.is_set():
            mapping.evict(0, MIB)
            mapping.prefetch(0, MIB)
            mapping.prefetch(range(0, 16, 3), BLOCK)
            mapping.stream(0, MIB)

    threads = [threading.Thread(target=read, args=(call,)) for call in readers] + [threading.Thread(target=hint)]
    for thread in threads:
        thread.start()
    for value in values:
        mapping.write(0, bytes((value,)) * MIB)
    is_over.set()
    for thread in threads:
        thread.join()
    assert not wrong
    assert mapping.read(0, MIB) == bytes((values[-1],)) * MIB

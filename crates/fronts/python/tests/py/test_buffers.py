# SPDX-License-Identifier: Apache-2.0
# Copyright the Aquifer authors

"""A mapping is a buffer, and stays mapped for as long as anything refers to its memory."""

import gc
import random

import numpy
import pytest

import aquifer

MIB = 1 << 20


def test_a_memoryview_reads_and_writes_the_memory(space):
    mapping = space.map(MIB)
    view = memoryview(mapping)
    assert (view.nbytes, view.format, view.readonly, view.shape, view.strides) == (MIB, "B", False, (MIB,), (1,))
    view[100:105] = b"hello"
    assert mapping[100:105] == b"hello" and mapping[104] == ord("o") and mapping[0] == 0
    mapping[-1] = 7
    mapping[10:12] = bytearray(b"ab")
    assert view[MIB - 1] == 7 and bytes(view[10:12]) == b"ab"
    assert bytes(mapping)[:12] == bytes(10) + b"ab"


def test_a_mapping_with_buffers_in_use_is_not_closed(space):
    mapping = space.map(MIB)
    view = memoryview(mapping)
    array = mapping.array("u4", (10,))
    part = array[3:]
    del array
    for refused in (mapping.close, lambda: mapping.__exit__(None, None, None)):
        with pytest.raises(aquifer.InUseError, match="buffers in use") as caught:
            refused()
        assert isinstance(caught.value, BufferError)
    view.release()
    with pytest.raises(BufferError):
        mapping.close()
    part[0] = 9
    assert mapping.read(12, 16) == (9).to_bytes(4, "little")
    del part
    mapping.close()
    mapping.close()
    assert mapping.closed


def test_an_array_keeps_its_mapping(space):
    array = aquifer.empty((1000, 100), "i8", space=space)
    assert not array.any()
    array[:] = numpy.arange(array.size).reshape(array.shape)
    part = array[10:20, ::2]
    del array
    gc.collect()
    assert part[0, 1] == 1002
    with pytest.raises(aquifer.InUseError):
        space.close()
    del part
    gc.collect()
    space.close()
    assert space.closed


@pytest.mark.parametrize("shift", [-8, 8])
def test_a_write_of_the_mappings_own_bytes_moves_them(space, shift):
    """Longer than what a write copies at a time, from and to bytes that overlap."""
    mapping = space.map(10 * MIB)
    array = mapping.array("u8")
    for source in (lambda: memoryview(mapping)[16 : 16 + 9 * MIB], lambda: array[2 : 2 + 9 * MIB // 8]):
        array[:] = numpy.arange(array.size)
        expected = numpy.array(array)
        at = 2 + shift // 8
        expected[at : at + 9 * MIB // 8] = numpy.arange(2, 2 + 9 * MIB // 8)
        mapping.write(16 + shift, source())
        assert (array == expected).all()


class Foreign:
    """Refers to the memory of an array, and does not say whose it is, as arrays of other libraries do."""

    def __init__(self, array, readonly):
        address, _ = array.__array_interface__["data"]
        self._keeps = array
        self.__array_interface__ = {**array.__array_interface__, "data": (address, readonly)}


@pytest.mark.parametrize("readonly", [False, True])
@pytest.mark.parametrize("shift", [-8, 8])
def test_a_write_of_the_mappings_own_bytes_moves_them_through_any_object(space, shift, readonly):
    """Each part that was copied overwrote the beginning of the next one, if nothing said whose bytes they are."""
    mapping = space.map(10 * MIB)
    array = mapping.array("u8")
    array[:] = numpy.arange(array.size)
    expected = numpy.array(array)
    at = 2 + shift // 8
    expected[at : at + 9 * MIB // 8] = numpy.arange(2, 2 + 9 * MIB // 8)
    mapping.write(16 + shift, numpy.asarray(Foreign(array[2 : 2 + 9 * MIB // 8], readonly)))
    assert (array == expected).all()


def test_what_would_keep_a_pointer_without_a_buffer_is_refused(space):
    with pytest.raises(BufferError, match="memoryview"):
        numpy.ndarray(4, buffer=space.map(MIB))


def test_memory_is_larger_than_the_budget(space):
    array = aquifer.empty((6 * MIB,), "u8", space=space)
    array[:] = numpy.arange(array.size)
    assert int(array.sum()) == array.size * (array.size - 1) // 2
    counted = space.statistics()
    assert counted["evicted_blocks"] > 0 and counted["resident_bytes"] <= 16 * MIB


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_every_read_is_the_last_write(seed):
    """Loads, stores, copies, hints, pins and gathers in any order, against a bytearray."""
    choice = random.Random(seed)
    # Larger than the budget, so that the memory is evicted by what the history does to it.
    size = 24 * MIB
    space = aquifer.Space(dram="16MiB", tiers="dram:size=64MiB", block_size=choice.choice(["auto", "4KiB", "64KiB"]))
    mapping, model = space.map(size), bytearray(size)
    view, pins = memoryview(mapping), []

    def write(start, stop):
        data = choice.randbytes(stop - start)
        model[start:stop] = data
        choice.choice([lambda: mapping.write(start, data), lambda: view.__setitem__(slice(start, stop), data)])()

    def read(start, stop):
        how = choice.choice([mapping.read, mapping.read_in_place, lambda start, stop: bytes(view[start:stop])])
        assert how(start, stop) == model[start:stop], f"seed {seed}: {start}..{stop}"

    def gather(start, stop):
        indices = [choice.randrange(size // 100) for _ in range(50)]
        expected = b"".join(model[index * 100 : index * 100 + 100] for index in indices)
        assert mapping.gather(indices, 100) == expected, f"seed {seed}: {indices}"

    def discard(start, stop):
        page = start // 4096 * 4096
        try:
            mapping.discard(page, page + 4096)
            model[page : page + 4096] = bytes(4096)
        except aquifer.PinnedError:
            assert pins

    def pin(start, stop):
        if len(pins) > 3:
            pins.pop(0).release()
        pins.append(mapping.pin(start, stop))

    def evict(start, stop):
        try:
            choice.choice([mapping.evict, mapping.stream])(start // MIB * MIB, start // MIB * MIB + MIB)
        except aquifer.PinnedError:
            assert pins

    for _ in range(600):
        start = choice.randrange(size - 5000)
        stop = start + choice.choice([1, 8, 100, 4096, 5000])
        choice.choice([write, write, read, read, gather, discard, pin, evict, mapping.prefetch])(start, stop)
    assert view == model

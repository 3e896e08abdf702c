# SPDX-License-Identifier: Apache-2.0
# Copyright the Aquifer authors

"""Named mappings keep what was synced, writes in place change what is evicted, and curves show the working set."""

import os

import numpy
import pytest

import aquifer

MIB = 1 << 20


@pytest.fixture
def named(tmp_path):
    """A space with a directory for named mappings."""
    tmp_path.chmod(0o700)
    return aquifer.Space(dram="16MiB", tiers=["dram:size=64MiB"], named_in=tmp_path)


def test_what_was_synced_is_there_when_it_is_opened_again(named):
    with named.map_named("numbers", 32 * MIB) as mapping:
        assert mapping.name == "numbers"
        numbers = mapping.array("u8")
        numbers[:] = numpy.arange(len(numbers))
        mapping.snapshot()
        numbers[5] = 7
        numbers[1 << 20] = 8
        mapping.sync(0, 4096)
        del numbers
    with named.map_named("numbers") as mapping:
        assert len(mapping) == 32 * MIB
        numbers = mapping.array("u8")
        assert numbers[5] == 7 and numbers[1 << 20] == 1 << 20 and numbers[-1] == len(numbers) - 1
        del numbers


def test_an_array_is_opened_by_name_as_by_numpy_memmap(named, tmp_path):
    expected = numpy.memmap(tmp_path / "numpy", "i4", "w+", shape=(1000, 300))
    array = aquifer.memmap("table", "i4", "w+", shape=(1000, 300), space=named)
    assert (array.shape, array.dtype) == (expected.shape, expected.dtype) and not array.any()
    for one in (array, expected):
        one[:] = numpy.arange(one.size).reshape(one.shape)
        one += 1
        one[::2, 5] = 7
        one.flush()
    assert (array == expected).all()
    array[10] = 0
    array[20:22] = 9
    array[20:22].flush()
    del array, one
    array = aquifer.memmap("table", "i4", "r", shape=(1000, 300), space=named)
    # What was not flushed is as before, as far as it is on other pages.
    expected[20:22] = 9
    assert (array[20:] == expected[20:]).all() and (array[:8] == expected[:8]).all()
    with pytest.raises(ValueError):
        array[0, 0] = 1
    with pytest.raises(ValueError):
        array.flags.writeable = True
    with pytest.raises(aquifer.AlreadyOpenError):
        aquifer.memmap("table", "i4", space=named)
    assert aquifer.gather(array, [25, 26]).tobytes() == expected[25:27].tobytes()
    del array
    rest = aquifer.memmap("table", "i4", offset=1200, space=named)
    assert rest.shape == (299_700,) and rest[0] == expected[1, 0]
    assert type(rest[5:]) is type(rest) and type(rest + 1) is numpy.ndarray and isinstance(rest.sum(), numpy.integer)
    del rest
    array = aquifer.memmap("table", "i4", "w+", shape=(1000, 300), space=named)
    assert not array.any()
    del array
    array = aquifer.memmap("table", "i4", space=named)
    assert array[300] == expected[1, 0], "a new array replaces the old one when it is flushed"
    del array
    array = aquifer.memmap("table", "i4", "w+", shape=(1000, 300), order="F", space=named)
    array.flush()
    del array
    assert not aquifer.memmap("table", "i4", space=named).any()


def test_an_array_that_cannot_be_opened_by_name_leaves_nothing_open(named, space):
    aquifer.memmap("table", "u1", "w+", shape=1000, space=named)
    for refused, call in [
        (ValueError, lambda: aquifer.memmap("table", mode="c", space=named)),
        (ValueError, lambda: aquifer.memmap("table", mode="w+", space=named)),
        (TypeError, lambda: aquifer.memmap("table", object, "w+", shape=3, space=named)),
        (TypeError, lambda: aquifer.memmap("table", object, space=named)),
        (FileNotFoundError, lambda: aquifer.memmap("nobody", space=named)),
        (aquifer.OtherSizeError, lambda: aquifer.memmap("table", mode="w+", shape=999, space=named)),
        (aquifer.OutOfRangeError, lambda: aquifer.memmap("table", shape=1001, space=named)),
        (aquifer.OutOfRangeError, lambda: aquifer.memmap("table", offset=-8, shape=8, space=named)),
        (aquifer.UnalignedError, lambda: aquifer.memmap("table", "V7", space=named)),
        (aquifer.BadNameError, lambda: aquifer.memmap("../table", space=named)),
        (aquifer.BadNameError, lambda: aquifer.memmap("table", space=space)),
    ]:
        with pytest.raises(refused) as kept:
            call()
        # The exception is kept, and the mapping can be opened all the same.
        named.map_named("table").close()
        assert kept.value is not None
    with pytest.raises(TypeError):
        aquifer.memmap("table", space=named)[[1, 2]].flush()


def test_a_file_that_is_gone_or_cut_off_cannot_be_synced(named, tmp_path):
    for change, refused in (
        (lambda file: file.unlink(), aquifer.ReplacedError),
        (lambda file: os.truncate(file, 0), aquifer.DamagedError),
    ):
        mapping = named.map_named("gone", MIB)
        mapping.write(0, b"abc")
        mapping.snapshot()
        change(tmp_path / "gone.aquifer")
        for call in (mapping.snapshot, lambda: mapping.sync(0, 3)):
            with pytest.raises(refused) as caught:
                call()
            assert isinstance(caught.value, aquifer.NamedError) and isinstance(caught.value, OSError)
        assert mapping.read(0, 3) == b"abc"
        mapping.close()


def test_what_is_wrong_with_a_name_is_an_exception(named, space, tmp_path):
    with pytest.raises(FileNotFoundError) as missing:
        named.map_named("nobody")
    assert isinstance(missing.value, aquifer.NotFoundError) and "nobody" not in missing.value.args
    mapping = named.map_named("one", MIB)
    for refused, call in [
        (aquifer.AlreadyOpenError, lambda: named.map_named("one", MIB)),
        (aquifer.BadNameError, lambda: named.map_named("../one", MIB)),
        (aquifer.BadNameError, lambda: space.map_named("one", MIB)),
        (aquifer.NotNamedError, lambda: space.map(MIB).sync()),
        (aquifer.OutOfRangeError, lambda: mapping.sync(0, 2 * MIB)),
        (aquifer.MappingSizeError, lambda: named.map_named("none", 0)),
        (ValueError, lambda: aquifer.Mapping(named, None)),
    ]:
        with pytest.raises(refused):
            call()
    mapping.close()
    with pytest.raises(aquifer.OtherSizeError) as other:
        named.map_named("one", 2 * MIB)
    assert (other.value.bytes, other.value.asked_bytes) == (MIB, 2 * MIB)
    with pytest.raises(aquifer.ClosedError):
        mapping.snapshot()
    foreign = tmp_path / "foreign.aquifer"
    foreign.write_bytes(b"1" * 8192)
    foreign.chmod(0o600)
    with pytest.raises(aquifer.DamagedError):
        named.map_named("foreign")


def test_writes_in_place_change_what_is_evicted(space, evict):
    mapping = space.map(4 * MIB)
    mapping.array("u8")[:] = numpy.arange(MIB // 2)
    evict(mapping)
    mapping.write_in_place(2 * MIB + 8, b"in place")
    assert mapping.status(2 * MIB, 2 * MIB + 8)[0].state == aquifer.State.STORED
    assert mapping.read(2 * MIB + 8, 2 * MIB + 16) == b"in place"
    assert mapping.read(2 * MIB + 16, 2 * MIB + 24) == (MIB // 4 + 2).to_bytes(8, "little")
    with pytest.raises(aquifer.OutOfRangeError):
        mapping.write_in_place(4 * MIB - 4, b"too long")


def test_hints_by_range(space):
    mapping = space.map(8 * MIB)
    mapping.priority("high", 0, 4 * MIB)
    mapping.priority("low", 4 * MIB)
    mapping.block_size(4096, 0, 2 * MIB)
    mapping.block_size(None)
    with pytest.raises(aquifer.BlockSizeError) as refused:
        mapping.block_size(5000)
    assert refused.value.bytes == 5000
    with pytest.raises(ValueError):
        mapping.priority("urgent")
    with pytest.raises(aquifer.OutOfRangeError):
        mapping.priority("high", 0, 9 * MIB)


def test_the_curve_ends_where_the_hot_part_does(space, wait_until):
    mapping = space.map(40 * MIB)
    mapping.array("u8")[:] = 1
    assert space.miss_ratio_curve() is None
    space.sample_touches()
    hot = mapping.array("u8", shape=(MIB,))

    def is_sampled():
        assert hot.sum() == MIB
        curve = space.miss_ratio_curve()
        return curve is not None and curve.samples > 300

    wait_until("samples", is_sampled)
    space.stop_sampling()
    curve = space.miss_ratio_curve()
    assert curve.content_bytes == 40 * MIB and curve.measured_seconds > 0
    assert 4 * MIB < curve.points[-1][0] < 20 * MIB, curve.points
    assert curve.miss_ratio(20 * MIB) == 0 < curve.miss_ratio(0) <= 1
    assert curve.least_dram_bytes(0.05, 1.0) >= curve.least_dram_bytes(0.05, 1e-9)
    with pytest.raises(ValueError):
        curve.least_dram_bytes(0)
    with pytest.raises(ValueError):
        curve.least_dram_bytes(0.05, -1)
    with pytest.raises(ValueError):
        space.sample_touches(-1)

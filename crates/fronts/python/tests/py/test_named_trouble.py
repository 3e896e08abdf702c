# SPDX-License-Identifier: Apache-2.0
# Copyright the Aquifer authors

"""What can be wrong with the file of a named mapping is an exception, and never wrong bytes."""

import multiprocessing
import resource
import struct

import numpy
import pytest

import aquifer

MIB = 1 << 20
SIZE = 4 * MIB
SUPERBLOCKS = 2


def space_in(directory, tier="dram:size=64MiB"):
    return aquifer.Space(dram="16MiB", tiers=tier, block_size="4KiB", named_in=directory)


@pytest.fixture
def directory(tmp_path):
    tmp_path.chmod(0o700)
    return tmp_path


@pytest.fixture
def named(directory):
    return space_in(directory)


@pytest.fixture
def stored(named, directory):
    """The file of a mapping, each word of which is its index plus one."""
    with named.map_named("whole", SIZE) as mapping:
        mapping.array("u8")[:] = numpy.arange(1, SIZE // 8 + 1)
        mapping.snapshot()
    return (directory / "whole.aquifer").read_bytes()


def crc_of(data):
    """The CRC-64 of the NVMe specification, with which a superblock is checked."""
    crc = (1 << 64) - 1
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x9A6C9329AC4BC9B5 if crc & 1 else 0)
    return crc ^ ((1 << 64) - 1)


def of_version(stored, version):
    changed = bytearray(stored)
    for start in range(0, SUPERBLOCKS * 4096, 4096):
        struct.pack_into("<I", changed, start + 8, version)
        struct.pack_into("<Q", changed, start + 56, crc_of(changed[start : start + 56]))
    return changed


def damaged(stored):
    changed = bytearray(stored)
    for start in range(0, SUPERBLOCKS * 4096, 4096):
        changed[start + 20] ^= 1
    return changed


@pytest.mark.parametrize(
    "change, why",
    [
        (lambda stored: stored[: 100 * 4096], "cut off"),
        (lambda stored: of_version(stored, 9), "9"),
        (damaged, "damaged"),
        (lambda stored: b"a file of somebody's", None),
        (lambda stored: b"", None),
    ],
)
def test_a_file_that_is_not_whole_or_of_another_version_is_not_opened(named, directory, stored, change, why):
    assert crc_of(b"123456789") == 0xAE8B14860A799888
    file = directory / "other.aquifer"
    file.write_bytes(change(stored))
    file.chmod(0o600)
    for size in (None, SIZE):
        with pytest.raises(aquifer.DamagedError, match=why):
            named.map_named("other", size)
    file.write_bytes(stored)
    with named.map_named("other") as mapping:
        assert mapping.read(SIZE - 8) == (SIZE // 8).to_bytes(8, "little")


def test_a_file_that_others_can_read_is_refused(named, directory, stored):
    (directory / "whole.aquifer").chmod(0o644)
    with pytest.raises(aquifer.RefusedError, match="chmod") as caught:
        named.map_named("whole")
    assert isinstance(caught.value, PermissionError)


def test_a_damaged_page_is_lost_and_no_other(named, directory, stored):
    changed = bytearray(stored)
    page, first = 100, (100 * 512 + 1).to_bytes(8, "little")
    at = next(at for at in range(0, len(changed), 4096) if changed[at : at + 8] == first)
    changed[at + 1000] ^= 1
    (directory / "whole.aquifer").write_bytes(changed)
    with named.map_named("whole") as mapping:
        for index in range(SIZE // 4096):
            if index == page:
                with pytest.raises(aquifer.LostError):
                    mapping.read(index * 4096, index * 4096 + 8)
            else:
                assert mapping.read(index * 4096, index * 4096 + 8) == (index * 512 + 1).to_bytes(8, "little")
        mapping.write(0, b"new")
        mapping.snapshot()
        mapping.discard(page * 4096, (page + 1) * 4096)
        mapping.snapshot()
    with named.map_named("whole") as mapping:
        assert mapping.read(0, 3) == b"new" and mapping.read(page * 4096, page * 4096 + 8) == bytes(8)


def test_a_sync_of_lost_changes_fails_and_changes_nothing(named, directory, stored, evict):
    space = space_in(directory, "failing:corrupt=1:dram:size=16MiB")
    with space.map_named("whole") as mapping:
        mapping.write(0, b"lost")
        evict(mapping)
        mapping.write(MIB, b"kept")
        with pytest.raises(aquifer.LostError):
            mapping.snapshot()
        mapping.sync(MIB, MIB + 4)
    with named.map_named("whole") as mapping:
        assert mapping.read(0, 8) == (1).to_bytes(8, "little") and mapping.read(MIB, MIB + 4) == b"kept"


def test_a_full_disk_is_an_error_and_the_mapping_goes_on_when_there_is_room(named):
    """By the limit on the size of a file."""
    mapping = named.map_named("full", SIZE)
    array = mapping.array("u1")
    array[:MIB] = 1
    mapping.snapshot()
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (3 * MIB, before[1]))
    try:
        array[:] = 2
        for call in (mapping.snapshot, mapping.sync):
            with pytest.raises(aquifer.FullDiskError) as caught:
                call()
            assert isinstance(caught.value, OSError)
        mapping.sync(0, 4096)
        assert (array == 2).all()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    del array
    mapping.close()
    with named.map_named("full") as mapping:
        array = mapping.array("u1")
        assert (array[:4096] == 2).all() and (array[4096:MIB] == 1).all() and not array[MIB:].any()
        array[:] = 3
        mapping.snapshot()
        del array
    with named.map_named("full") as mapping:
        assert mapping.read() == b"\x03" * SIZE


def _in_child(mapping, space, directory, answers):
    refused = []
    own = space_in(directory)
    for exception, call in (
        (aquifer.ForkedError, mapping.snapshot),
        (aquifer.ForkedError, lambda: mapping.sync(0, 8)),
        (aquifer.ForkedError, lambda: space.map_named("other", MIB)),
        # In a space of its own, it is any other process.
        (aquifer.AlreadyOpenError, lambda: own.map_named("whole")),
    ):
        try:
            call()
            refused.append("not refused")
        except exception:
            pass
        except BaseException as other:
            refused.append(repr(other))
    own.close()
    answers.send(refused)


def test_a_named_mapping_is_open_in_one_process(named, directory, stored):
    with named.map_named("whole") as mapping:
        processes = multiprocessing.get_context("fork")
        here, there = processes.Pipe()
        child = processes.Process(target=_in_child, args=(mapping, named, directory, there))
        child.start()
        assert here.poll(120)
        assert here.recv() == []
        child.join()
        assert child.exitcode == 0
        mapping.snapshot()

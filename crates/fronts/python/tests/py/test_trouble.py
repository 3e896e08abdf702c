# SPDX-License-Identifier: Apache-2.0
# Copyright the Aquifer authors

"""Bad input and trouble: each is a documented exception, and never a crash or wrong bytes."""

import asyncio
import copy
import os
import multiprocessing
import pickle
import signal
import subprocess
import sys
import time

import numpy
import pytest

import aquifer

MIB = 1 << 20


def calls(mapping):
    """Every call with a range."""
    return [
        mapping.read,
        mapping.read_in_place,
        mapping.prefetch,
        mapping.evict,
        mapping.stream,
        lambda start, stop: mapping.pattern("random", start, stop),
        mapping.status,
        mapping.temperature,
        mapping.histogram,
        mapping.pin,
        mapping.discard,
        lambda start, stop: asyncio.run(mapping.fetch(start, stop)),
    ]


def test_ranges_outside_are_refused(space):
    mapping = space.map(5000)
    for call in calls(mapping):
        for start, stop in ((4000, 5001), (7, 6), (-1, 10), (0, -1), (1 << 64, 1 << 65), (0, 1 << 63)):
            with pytest.raises(aquifer.OutOfRangeError) as caught:
                call(start, stop)
            assert isinstance(caught.value, IndexError) and isinstance(caught.value, aquifer.Error)
        for wrong in ("7", 1.5, None, object()):
            with pytest.raises(TypeError):
                call(wrong, 10)
    with pytest.raises(aquifer.OutOfRangeError) as caught:
        mapping.status(4000, 5001)
    assert (caught.value.start, caught.value.stop, caught.value.length) == (4000, 5001, 5000)
    for call in calls(mapping)[2:]:
        with pytest.raises(aquifer.EmptyRangeError):
            call(7, 7)
    assert mapping.read(7, 7) == b"" and not mapping.ready(0, 5001)
    for start, data in ((4999, b"ab"), (-1, b"a"), (1 << 70, b"a")):
        with pytest.raises(aquifer.OutOfRangeError):
            mapping.write(start, data)
    mapping.write(5000, b"")
    for wrong in (lambda: mapping[5000], lambda: mapping.__setitem__(-5001, 1)):
        with pytest.raises(IndexError):
            wrong()
    for wrong in (lambda: mapping[::2], lambda: mapping.__setitem__(slice(0, 2), b"abc"), lambda: mapping.discard(1, 9)):
        with pytest.raises(ValueError):
            wrong()
    for wrong in (lambda: mapping.write(0, "text"), lambda: mapping.prefetch([1]), lambda: iter(mapping)):
        with pytest.raises(TypeError):
            wrong()


def test_arrays_that_do_not_fit_are_refused(space):
    mapping = space.map(1001)
    for wrong in (lambda: mapping.array("f8", 126), lambda: mapping.array("u1", 1, offset=-1)):
        with pytest.raises(aquifer.OutOfRangeError):
            wrong()
    with pytest.raises(aquifer.UnalignedError):
        mapping.array("f8")
    for wrong in (lambda: mapping.array(object), lambda: mapping.array("S"), lambda: mapping.array("f8", "x")):
        with pytest.raises(TypeError):
            wrong()
    with pytest.raises(ValueError):
        mapping.array("f8", (-1,))
    for size in (0, (1 << 40) + 1, -1, 1 << 64):
        with pytest.raises(aquifer.MappingSizeError) as caught:
            space.map(size)
        assert caught.value.bytes == size
    with pytest.raises(aquifer.MappingSizeError):
        aquifer.empty((1 << 40, 1 << 40), space=space)
    for size in (0, 3, -4096, 1 << 64):
        with pytest.raises(aquifer.BlockSizeError):
            mapping.block_size(size)


def test_settings_that_cannot_be_are_refused():
    def space(**other):
        return aquifer.Space(**{"dram": "16MiB", "tiers": "dram:size=16MiB", **other})

    for other in ({"dram": "much"}, {"dram": 1}, {"dram": "1024TiB"}, {"dram": -1}, {"tiers": []}, {"tiers": "tape:"}, {"policy": "mru"}, {"block_size": "3KiB"}):
        with pytest.raises(aquifer.SettingError) as caught:
            space(**other)
        assert isinstance(caught.value, ValueError) and isinstance(caught.value, aquifer.OpenError)
    with pytest.raises(aquifer.TierError) as caught:
        space(tiers=["flash:/nowhere/at/all"])
    assert isinstance(caught.value, OSError) and "/nowhere/at" in str(caught.value)
    for other in ({"dram": 1.5}, {"dram": None}, {"dram": True}, {"tiers": [7]}, {"tiers": 7}):
        with pytest.raises(TypeError):
            space(**other)


def test_what_is_closed_says_so(space):
    mapping = space.map(MIB)
    with pytest.raises(aquifer.InUseError):
        space.close()
    assert not space.closed
    mapping.close()
    for call in calls(mapping):
        with pytest.raises(aquifer.ClosedError):
            call(0, 10)
    for call in (lambda: mapping.write(0, b"a"), lambda: mapping.gather([0], 1), lambda: memoryview(mapping)):
        with pytest.raises(ValueError):
            call()
    assert not mapping.ready(0, 1)
    space.close()
    space.close()
    for call in (lambda: space.map(1), space.statistics, space.histogram, lambda: space.pin_bytes_max):
        with pytest.raises(aquifer.ClosedError):
            call()


def test_more_than_the_budget_is_refused(space):
    mapping = space.map(48 * MIB)
    with pytest.raises(aquifer.BeyondBudgetError) as caught:
        mapping.prefetch()
    assert caught.value.bytes_max == MIB and caught.value.asked_bytes == 48 * MIB
    with pytest.raises(aquifer.BeyondBudgetError):
        mapping.prefetch(range(0, 600), 65536)
    with pytest.raises(aquifer.PinnedTooMuchError) as caught:
        mapping.pin()
    assert isinstance(caught.value, MemoryError)


def test_lost_memory_is_an_error_until_it_is_discarded(evict):
    space = aquifer.Space(dram="16MiB", tiers="failing:after=0,on=read:dram:size=64MiB", block_size="4KiB")
    mapping = space.map(MIB)
    mapping.write(0, b"\x07" * MIB)
    evict(mapping)
    for call in (mapping.read, lambda start, stop: mapping.gather([start], stop - start)):
        with pytest.raises(aquifer.LostError) as caught:
            call(0, 8)
        assert isinstance(caught.value, OSError)
    with pytest.raises(aquifer.LostError):
        asyncio.run(mapping.fetch(0, 8))
    assert mapping.status(0, 8)[0].state == aquifer.State.LOST
    mapping.discard()
    assert mapping.read(0, 8) == bytes(8)


def test_nothing_is_pickled_or_copied(space):
    for one in (space, space.map(MIB)):
        for call in (pickle.dumps, copy.copy, copy.deepcopy):
            with pytest.raises(TypeError, match="belongs to its process"):
                call(one)


def _in_child(space, mapping, answers):
    refused = []
    for call in (
        *(lambda call=call: call(0, 10) for call in calls(mapping)),
        lambda: mapping.write(0, b"a"),
        lambda: mapping.gather([0], 1),
        lambda: memoryview(mapping),
        lambda: space.map(1),
        space.statistics,
    ):
        try:
            call()
            refused.append("not refused")
        except aquifer.ForkedError:
            pass
        except BaseException as other:
            refused.append(repr(other))
    mapping.close()
    space.close()
    answers.send((refused, mapping.ready(0, 1)))


def test_a_forked_child_is_refused(space):
    """As with multiprocessing's start method 'fork'."""
    mapping = space.map(MIB)
    mapping.write(0, b"parent")
    processes = multiprocessing.get_context("fork")
    here, there = processes.Pipe()
    child = processes.Process(target=_in_child, args=(space, mapping, there))
    child.start()
    assert here.poll(120)
    assert here.recv() == ([], False)
    child.join()
    assert child.exitcode == 0 and mapping.read(0, 6) == b"parent"


def test_a_forked_child_that_touches_a_buffer_ends_with_a_message():
    """It does not have the memory, and never reads what it maps at these addresses later."""
    script = """
import os, aquifer
space = aquifer.Space(dram="16MiB", tiers="dram:size=16MiB")
mapping = space.map(4 << 20)
view = memoryview(mapping)
view[0] = 7
child = os.fork()
if child == 0:
    for line in open("/proc/self/maps"):
        bounds, rights = line.split()[:2]
        start, stop = (int(bound, 16) for bound in bounds.split("-"))
        if start <= mapping.address < stop and rights == "---p":
            view[0]
    os._exit(1)
_, status = os.waitpid(child, 0)
print(status, view[0])
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    status, kept = map(int, done.stdout.split())
    assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGSEGV and kept == 7, done
    assert "aquifer: a forked child touched memory" in done.stderr and "spawn" in done.stderr


def test_an_interpreter_ends_while_a_space_is_in_use():
    script = """
import asyncio, threading, aquifer
space = aquifer.Space(dram="16MiB", tiers="failing:every=1,on=read,times=0,delay=20ms:dram:size=64MiB")
mapping = space.map(32 << 20)
array = mapping.array("u8")
array[:] = 1
threading.Thread(target=mapping.gather, args=(range(0, 1000, 7), 4096), daemon=True).start()
mapping.prefetch([1, 2, 300], 4096)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and not done.stderr, done


def test_a_long_copy_can_be_interrupted(evict):
    """As by Ctrl-C: an exception of a signal handler ends the copy long before it is complete."""

    class Interrupt(Exception):
        pass

    def interrupt(number, frame):
        raise Interrupt

    slow = "failing:every=1,on=read,times=0,delay=20ms:dram:size=64MiB"
    space = aquifer.Space(dram="16MiB", tiers=slow, block_size="2MiB")
    mapping = space.map(16 * MIB)
    mapping.write(0, b"\x07" * 16 * MIB)
    mapping.block_size(4096)
    evict(mapping)
    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        for copy_all in (lambda: mapping.gather(range(4096), 4096), mapping.read_in_place):
            signal.setitimer(signal.ITIMER_REAL, 1)
            began = time.monotonic()
            with pytest.raises(Interrupt):
                copy_all()
            # All of it takes 4,096 times 20 ms, and more on a busy machine.
            assert time.monotonic() - began < 60
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert mapping.read(0, 3) == b"\x07" * 3


def test_a_failing_block_keeps_its_exception(space):
    with pytest.raises(KeyError):
        with space.map(MIB) as mapping:
            array = mapping.array()
            raise KeyError("first")
    assert not mapping.closed and numpy.shares_memory(array, array)

# SPDX-License-Identifier: Apache-2.0
# Copyright the Aquifer authors

"""A space that serves no system calls: threads fetch what they touch, and what gives memory to the kernel fails."""

import errno
import io
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading

import numpy
import pytest

import aquifer

MIB = 1 << 20


@pytest.fixture
def space():
    return aquifer.Space(dram="16MiB", tiers="dram:size=64MiB", block_size="4KiB", without_system_calls=True)


@pytest.fixture
def array(space):
    """Evicted numbers, each of which is its index."""
    array = aquifer.empty((MIB,), "u8", space=space)
    array[:] = numpy.arange(array.size)
    return array


def fails(call):
    """Whether a call fails as a system call does that is given evicted memory."""
    with pytest.raises(OSError) as caught:
        call()
    assert caught.value.errno == errno.EFAULT, caught.value
    return True


def test_threads_fetch_what_they_touch(space):
    array = aquifer.empty((6 * MIB,), "u8", space=space)
    array[:] = numpy.arange(array.size)
    assert not space.serves_system_calls
    before, sums = space.statistics()["fetched_bytes"], [0, 0]

    def add(start):
        sums[start] = int(array[start::2].sum())

    threads = [threading.Thread(target=add, args=(start,)) for start in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(sums) == array.size * (array.size - 1) // 2
    assert space.statistics()["fetched_bytes"] > before


def test_system_calls_on_evicted_memory_raise_and_copies_go_on(space, array, evict, tmp_path):
    mapping, start, stop = aquifer.mapping_of(array)
    evict(mapping)
    view = memoryview(array).cast("B")
    expected = numpy.arange(array.size, dtype="u8").tobytes()
    path = tmp_path / "file"
    here, there = socket.socketpair()
    with open(path, "w+b") as file, open(path, "r+b", buffering=0) as raw, here, there:
        # What gives the memory to write(2), send(2), read(2) and recv(2).
        assert fails(lambda: file.write(view))
        assert fails(lambda: raw.write(view))
        assert fails(lambda: os.write(raw.fileno(), view))
        assert fails(lambda: here.send(view[:4096]))
        there.send(bytes(4096))
        assert fails(lambda: here.recv_into(view[:4096]))
        raw.write(bytes(4096))
        raw.seek(0)
        assert fails(lambda: raw.readinto(view[:4096]))
        # Without an errno: NumPy counts what fwrite(3) has written.
        with pytest.raises(OSError, match="requested and"):
            array.tofile(file)
    # Copies fetch what they read, so only they and the interpreter touch it.
    with open(path, "wb") as file:
        file.write(array.tobytes())
    assert path.read_bytes() == expected
    evict(mapping)
    with open(path, "wb") as file:
        file.write(mapping.read())
    assert path.read_bytes() == expected
    evict(mapping)
    assert pickle.loads(pickle.dumps(array)).tobytes() == expected
    # Pinned memory stays resident, so the kernel may have it.
    evict(mapping)
    with mapping.pin(0, 4096), open(path, "wb", buffering=0) as raw:
        raw.write(view[:4096])
    assert path.read_bytes() == expected[:4096]
    evict(mapping)
    assert view == expected and io.BytesIO(view).getvalue() == expected
    view.release()


SCRIPT = """
import faulthandler, resource, signal, sys, aquifer
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
early, late = sys.argv[1:]
exec(early)
space = aquifer.Space(dram="16MiB", tiers="dram:size=64MiB", block_size="4KiB", without_system_calls=True)
mapping = space.map(40 << 20)
view = memoryview(mapping)
for at in range(0, 40 << 20, 4096):
    view[at] = 7
exec(late)
print(sum(view[at] for at in range(0, 40 << 20, 4096)) // 7)
"""


@pytest.mark.parametrize(
    "early, late, ends_by",
    [
        ("faulthandler.enable()", "", 0),
        ("", "faulthandler.enable()", signal.SIGBUS),
        ("", "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])", 0),
        ("", "signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())", signal.SIGBUS),
    ],
)
def test_the_signal_of_a_fault_must_arrive(early, late, ends_by):
    done = subprocess.run([sys.executable, "-c", SCRIPT, early, late], capture_output=True, text=True, timeout=120)
    assert done.returncode == -ends_by, done
    assert ends_by or done.stdout.strip() == str(40 << 8), done


def test_the_setting_is_a_truth_value():
    for wrong in ("yes", 1, None):
        with pytest.raises(TypeError):
            aquifer.Space(dram="16MiB", tiers="dram:size=16MiB", without_system_calls=wrong)

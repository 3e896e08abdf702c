#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# Copyright the Aquifer authors

"""Reads random rows of a NumPy array: of a far one by gather or by indexing, of a mapped file, or of one in DRAM.

A workload of `aquifer bench`, with its arguments and its line of JSON. It needs NumPy, and the package `aquifer` for
far memory. Every row that is read is checked, outside the time that is measured.
"""

import argparse
import json
import mmap
import os
import resource
import sys
import time

import numpy

COLUMNS = 128
ROW_BYTES = COLUMNS * 8
# Rows that are asked for at a time.
BATCH = 4096
# Rows that are written at a time.
WRITTEN = 4096
UNITS = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}


def size(text):
    """Bytes, with or without a unit."""
    unit = text[-3:]
    return int(float(text[:-3]) * UNITS[unit]) if unit in UNITS else int(text)


def ordinary_bytes():
    """What the interpreter has resident, which local memory has to hold, too."""
    with open("/proc/self/statm", encoding="ascii") as statm:
        return int(statm.read().split()[1]) * mmap.PAGESIZE


def rows_of(numbers):
    """The rows with these numbers, as they were written."""
    return numbers[:, None] * COLUMNS + numpy.arange(COLUMNS)


def parts(count):
    """The numbers of all rows, some at a time."""
    for at in range(0, count, WRITTEN):
        yield numpy.arange(at, min(at + WRITTEN, count))


def mapped(path, shape):
    """An array in a new file that is not in the page cache, mapped for scattered reads."""
    with open(path, "wb") as file:
        for numbers in parts(shape[0]):
            file.write(rows_of(numbers).tobytes())
        file.flush()
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    array = numpy.memmap(path, "i8", "r", shape=shape)
    array._mmap.madvise(mmap.MADV_RANDOM)
    return array


class Rows:
    """The array, and how it is read."""

    def __init__(self, given, count):
        shape = (count, COLUMNS)
        self.space, self.read = None, lambda numbers: self.array[numbers]
        if given.file is not None:
            self.array = mapped(given.file, shape)
            return
        if given.way == "dram":
            self.array = numpy.empty(shape, "i8")
        else:
            import aquifer

            budget = given.dram - given.ordinary_bytes
            self.space = aquifer.Space(dram=str(max(budget, 0)), tiers=[given.tier])
            self.array = aquifer.empty(shape, "i8", space=self.space)
            mapping, start, stop = aquifer.mapping_of(self.array)
            mapping.pattern("random", start, stop)
            if given.way == "in-place":
                self.read = lambda numbers: aquifer.gather(self.array, numbers)
        for numbers in parts(count):
            self.array[numbers[0] : numbers[-1] + 1] = rows_of(numbers)

    def fetched_bytes(self):
        """Bytes that were fetched so far."""
        return 0 if self.space is None else self.space.statistics()["fetched_bytes"]


def read_for(rows, seconds, random):
    """Reads batches for this long. Returns how many rows, the time, and whether all were right."""
    count, spent, is_right = 0, 0.0, True
    while spent < seconds:
        numbers = random.integers(0, len(rows.array), BATCH)
        begin = time.perf_counter()
        found = rows.read(numbers)
        spent += time.perf_counter() - begin
        count += BATCH
        is_right = is_right and bool((found == rows_of(numbers)).all())
    return count, spent, is_right


def parsed():
    """The arguments."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bytes", type=size, default=512 << 20, help="bytes of the array")
    parser.add_argument("--way", choices=["blocking", "dram", "in-place"], default="dram", help="how rows are read")
    parser.add_argument("--file", help="the array is in this new file, and is read through numpy.memmap")
    parser.add_argument("--dram", type=size, help="local memory for the array and the interpreter")
    parser.add_argument("--tier", help="the tier, as for aquifer run")
    parser.add_argument("--seconds", type=float, default=5.0, help="how long to measure")
    parser.add_argument("--warmup", type=float, default=2.0, help="how long to read before that")
    parser.add_argument("--seed", type=int, default=1, help="the stream of random numbers")
    parser.add_argument("--footprint", action="store_true", help="print the bytes that it takes in DRAM, and end")
    given = parser.parse_args()
    if given.bytes < ROW_BYTES:
        parser.error(f"--bytes holds less than one row of {ROW_BYTES} bytes")
    if given.way != "dram" and given.file is None and (given.dram is None or given.tier is None):
        parser.error(f"--way {given.way} needs --dram and --tier")
    return given


def main():
    given = parsed()
    given.ordinary_bytes = ordinary_bytes()
    count = given.bytes // ROW_BYTES
    if given.footprint:
        print(count * ROW_BYTES + given.ordinary_bytes)
        return 0
    random = numpy.random.default_rng(given.seed)
    rows = Rows(given, count)
    _, _, warm_is_right = read_for(rows, given.warmup, random)
    fetched_before = rows.fetched_bytes()
    reads, seconds, is_right = read_for(rows, given.seconds, random)
    is_verified = warm_is_right and is_right and reads > 0
    line = {
        "program": "gather_python",
        "workload": "gather-python",
        "way": given.way if given.file is None else "mmap-file",
        "bytes": count * ROW_BYTES,
        "ordinary_bytes": given.ordinary_bytes,
        "reads": reads,
        "fetched_bytes": rows.fetched_bytes() - fetched_before,
        "seconds": seconds,
        "peak_resident_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10,
        "figure": {"name": "rows", "value": reads / seconds if seconds else 0, "unit": "/s", "better": "higher"},
        "verified": is_verified,
    }
    print(json.dumps(line))
    return 0 if is_verified else 1


if __name__ == "__main__":
    sys.exit(main())

# SPDX-License-Identifier: Apache-2.0
# Copyright the Aquifer authors

"""Reads scattered rows of an array four times its budget of DRAM in four ways, and prints how long a row takes.

By gather; by indexing, without hints and with rows prefetched ahead; and from numpy.memmap. Each reads as many rows, at
random. numpy.memmap gets as much page cache as the kernel leaves it; for equal memory, run this in a cgroup with a
limit a little above the budget:

    systemd-run --scope -p MemoryMax=200M python gather.py --dram 64MiB --tier flash:/var/tmp
"""

import argparse
import os
import tempfile
import time

import numpy

import aquifer

ROW_BYTES = 4096
BATCH = 50
UNITS = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}


def timed(name, rows, read):
    """Microseconds for each row, and the sum of what was read."""
    begin = time.perf_counter()
    total = read()
    took = (time.perf_counter() - begin) * 1e6 / rows
    print(f"{name:<10} {took:9.1f} us for each row")
    return total


def ahead(array, rows):
    """The sum of these rows, which are prefetched a batch ahead."""
    mapping, _, _ = aquifer.mapping_of(array)
    total = 0
    for at in range(0, len(rows), BATCH):
        coming = rows[at + BATCH : at + 2 * BATCH]
        if coming.size:
            mapping.prefetch(coming, ROW_BYTES)
        total += int(array[rows[at : at + BATCH]].sum())
    return total


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dram", default="64MiB", help="the budget")
    parser.add_argument("--tier", default="dram:", help="where cold memory goes, as for aquifer run")
    parser.add_argument("--rows", type=int, default=5000, help="how many rows to read")
    parser.add_argument("--directory", default=None, help="where the file of numpy.memmap is made")
    given = parser.parse_args()
    number, unit = given.dram[:-3], given.dram[-3:]
    budget = int(number) * UNITS[unit]
    shape = (4 * budget // ROW_BYTES, ROW_BYTES // 8)
    tier = given.tier if given.tier != "dram:" else f"dram:size={5 * budget}"
    rows = numpy.random.default_rng(7).integers(0, shape[0], (3, given.rows))

    space = aquifer.Space(dram=given.dram, tiers=[tier])
    array = aquifer.empty(shape, "i8", space=space)
    with tempfile.TemporaryFile(dir=given.directory) as file:
        mapped = numpy.memmap(file, "i8", "w+", shape=shape)
        for at in range(0, shape[0], 1024):
            numbers = numpy.arange(at, min(at + 1024, shape[0]))
            array[at : at + 1024] = numbers[:, None]
            mapped[at : at + 1024] = numbers[:, None]
        mapped.flush()
        # A program that starts with a file does not find it in the page cache, unlike one that has just written it.
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        totals = [
            timed("gather", given.rows, lambda: int(aquifer.gather(array, rows[0]).sum())),
            timed("indexing", given.rows, lambda: int(array[rows[1]].sum())),
            timed("prefetch", given.rows, lambda: ahead(array, rows[2])),
            timed("memmap", given.rows, lambda: int(mapped[rows[0]].sum())),
        ]
        del mapped
    assert totals == [int(rows[read].sum()) * shape[1] for read in (0, 1, 2, 0)]


if __name__ == "__main__":
    main()

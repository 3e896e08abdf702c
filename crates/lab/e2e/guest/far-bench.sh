# SPDX-License-Identifier: Apache-2.0
# Copyright the Aquifer authors
#
# `aquifer bench` on nodes: what its contenders place is where they say. The figures are not judged: they are those of an
# emulated machine.
#
# Sourced by far-nodes.sh, whose functions it uses.

# In seconds of the guest's clock. A bench is hundreds of runs, each some seconds long on an idle machine: on a busy one it
# took more than eleven minutes.
BENCH_MAX=7200

# Runs the bench, and notes meanwhile where its program has its memory, the lines of numa_maps(5) that have a node, and how
# large the memory files on nodes 1 and 2 are.
bench() { # program, arguments of the bench
    program=$1
    shift
    rm -f /tmp/bench-status
    : >/tmp/maps
    : >/tmp/files
    { timeout -s KILL $BENCH_MAX aquifer bench --rounds 1 --programs /workloads --dir /tmp/bench --json /tmp/bench.json \
        "$@" >/tmp/bench.out 2>&1; echo $? >/tmp/bench-status; } &
    until [ -s /tmp/bench-status ]; do
        for node in /sys/devices/system/node/node[12]; do awk '/Shmem:/ { print $2, $4 }' $node/meminfo; done >>/tmp/files
        for process in $(pidof $program); do cat /proc/$process/numa_maps 2>/dev/null | grep ' N[0-9]*=' >>/tmp/maps; done
        sleep 0.1
    done
    wait $!
    cat /tmp/bench.out
    sed 's/^[0-9a-f]* //' /tmp/maps | sort | uniq -c | sort -rn | grep -v 'file=/[blw]' | head -n 20
    [ "$(cat /tmp/bench-status)" = 0 ] && grep -q '"complete": *true' /tmp/bench.json && grep -q '"skipped": *\[\]' /tmp/bench.json
}

# Some memory was bound to a node, and none of that is elsewhere; code may be.
bound_to() { # node
    grep "^[0-9a-f]* bind:$1 " /tmp/maps | grep -v 'file=/[blw]' >/tmp/bound
    grep -q " N$1=" /tmp/bound && ! grep -q " N[^$1]=" /tmp/bound
}

# At least 1 MiB of a tier was on a node, and none on the other node without CPUs.
tier_on() { # node
    awk -v node=$1 '!($1 in first) { first[$1] = $2 } $2 > most[$1] { most[$1] = $2 }
        END { for (it in most) { grown = most[it] - first[it]; print "node", it, "files grew by", grown, "KiB"
            if ((grown >= 1024) != (it == node)) bad = 1 } exit bad || !(node in most) }' /tmp/files
}

# Each node by the program's own placement and by numactl's, and a working set that outgrows the budget.
bench_memory() {
    bench memory_speed --workload memory --bytes 20MiB --seconds 20ms --contender aquifer-node:1 && bound_to 1 && tier_on 1 || return 1
    grep -q 'node1 from node0, numactl' /tmp/bench.out && grep -q 'aquifer-node:1' /tmp/bench.out
}

# The tier is on the node, and all memory of the program that numactl places.
bench_node() {
    small="stream --workload stream --bytes 36MiB --local 50 --iterations 2"
    bench $small --contender aquifer-node:1 && tier_on 1 || return 1
    bench $small --contender numactl:1 && bound_to 1 && grep -q '^[0-9a-f]* bind:1 heap ' /tmp/maps
}

# The same on the CXL devices, whose emulation is slow: without huge pages, and with as little memory as there can be.
cxl_bench() {
    huge=/sys/kernel/mm/transparent_hugepage/enabled
    echo never >$huge
    bench memory_speed --workload memory --bytes 1MiB --seconds 5ms && bound_to 2 &&
        grep -q 'node2 from node0, numactl' /tmp/bench.out &&
        bench stream --workload stream --bytes 18MiB --local 90 --iterations 2 --contender aquifer-node:2 && tier_on 2
    status=$?
    echo madvise >$huge
    return $status
}

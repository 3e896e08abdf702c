#!/bin/busybox sh
# SPDX-License-Identifier: Apache-2.0
# Copyright the Aquifer authors
#
# The first process of the guest with far memory: node 0 with the CPUs, node 1 with memory alone, 64 MiB of a memory
# device at 960 MiB, and, where QEMU has them, two CXL devices of 256 MiB, whose memory becomes node 2.
#
# QEMU emulates CXL memory as a device, at some MB/s: no more than a MiB of it is ever touched.

. /guest/start.sh

# Whether the kernel has weights.
weighted_interleave() { [ -e /sys/kernel/mm/mempolicy/weighted_interleave ]; }

# Pages of a program that is spread, exactly.
spread() { # shares, the expected line, how many pages
    run --dram 64MiB --numa "$1" --tier dram:size=16MiB -- /bin/far-nodes count ${3:-3072} >/tmp/out 2>/tmp/err
    cat /tmp/out /tmp/err
    grep -qx "pages $2" /tmp/out
}

even_and_bound() {
    spread node0:1,node1:1 "n0=1536 n1=1536 n2=0 n3=0 absent=0" && [ ! -s /tmp/err ] &&
        spread node1 "n0=0 n1=3072 n2=0 n3=0 absent=0" &&
        spread dram:2,cxl:2 "n0=1536 n1=1536 n2=0 n3=0 absent=0"
}

# The first sets the machine's weights, which the second finds set and leaves alone.
weighted() {
    spread dram:3,node1:1 "n0=2304 n1=768 n2=0 n3=0 absent=0" && grep -q "node0:3,node1:1" /tmp/err || return 1
    spread node0:2,node1:1 "n0=1536 n1=1536 n2=0 n3=0 absent=0" && grep -q "tiering apply --weights" /tmp/err || return 1
    run --dram 64MiB --strict --numa node0:2,node1:1 -- /bin/far-nodes count 16 && return 1
    aquifer tiering apply --weights node0:2,node1:1 || return 1
    spread node0:2,node1:1 "n0=2048 n1=1024 n2=0 n3=0 absent=0" && [ ! -s /tmp/err ] || return 1
    spread node0:2,node1:1 "n0=2048 n1=1024 n2=0 n3=0 absent=0" || return 1
    aquifer tiering apply --weights default && aquifer tiering status --json | grep -q '"by_node":{"0":1,"1":1'
}

# By bandwidth, which is measured once and kept. Emulated nodes are alike, so the kept figures are changed here.
by_bandwidth() {
    kept=/var/lib/aquifer/bandwidth.json
    spread auto "n0=.* n2=0 n3=0 absent=0" || return 1
    grep -q "measured node0 [1-9].*, node1 [1-9].*kept in $kept" /tmp/err && cat $kept || return 1
    sed -i 's/\("mb_per_second":\)[0-9]*/\13000/; s/\(.*"mb_per_second":\)[0-9]*/\11000/' $kept
    aquifer tiering apply --weights default
    spread auto "n0=2304 n1=768 n2=0 n3=0 absent=0" && ! grep -q measured /tmp/err || return 1
    aquifer tiering apply --weights default
}

# Without the kernel's weights: even, and said.
unweighted() {
    spread dram:3,node1:1 "n0=1536 n1=1536 n2=0 n3=0 absent=0" && grep -q "takes Linux 6.9" /tmp/err
}

# 24 MiB of a program on 16 MiB: at least 6 MiB are in the tier, all of it on node 1.
node_tier() {
    run --dram 16MiB --tier node:1,size=64MiB --stats-json /tmp/stats -- /bin/far-nodes fill 24 >/tmp/out || return 1
    cat /tmp/out
    grep -q "wrong 0" /tmp/out && grep -q '"written_back_bytes": *[1-9]' /tmp/stats || return 1
    set -- $(grep "^files" /tmp/out)
    [ "$3" -le 2048 ] && [ "$6" -ge 6144 ]
}

refused() { # tier, part of the message
    run --dram 16MiB --tier "$1" -- /bin/far-nodes fill 20 >/tmp/out 2>&1 && return 1
    cat /tmp/out
    grep -q "$2" /tmp/out
}

refusals() {
    refused node:7 "there is no NUMA node 7" && refused node:1,size=8GiB "give it less with size=" &&
        refused dax:/dev/null "neither a memory device" && refused dax:/dev/dax9.9 "there is no /dev/dax9.9"
}

# The memory at 960 MiB as a device that programs map.
devdax_tier() {
    cd /sys/bus/nd/devices || return 1
    namespace=$(ls | grep namespace)
    echo $namespace >/sys/bus/nd/drivers/nd_pmem/unbind
    seed=$(cat region*/dax_seed)
    echo 2097152 >$seed/align && cat /proc/sys/kernel/random/uuid >$seed/uuid && echo pmem >$seed/mode
    echo $namespace >$seed/namespace && echo $seed >/sys/bus/nd/drivers/dax_pmem/bind
    cd /
    wait_for "ls /dev/dax*" || return 1
    aquifer cxl list
    device=$(ls /dev/dax* | head -n 1)
    run --dram 16MiB --tier dax:$device -- /bin/far-nodes fill 24 >/tmp/out || return 1
    cat /tmp/out
    grep -q "wrong 0" /tmp/out || return 1
    # A second instance is refused while the first one has it.
    run --dram 16MiB --tier dax:$device -- /bin/far-nodes hold 0 20480 /tmp/first >/tmp/holding &
    first=$!
    wait_for "grep -q holding /tmp/holding" && refused dax:$device "is held by another instance"
    status=$?
    : >/tmp/first
    wait $first
    return $status
}

lend() { # source, control socket
    aquifer donor --size 32MiB --listen 127.0.0.1:7411 --security plain --source $1 --control /tmp/control >/tmp/donor 2>&1 &
    donor=$!
    wait_for "grep -q lends /tmp/donor" || { cat /tmp/donor; return 1; }
}

# One program over DRAM, a far node and a donor, which itself lends memory of the far node.
donor_and_chain() {
    ip link set lo up
    lend node:1 || return 1
    run --dram 16MiB --tier node:1,size=8MiB --tier donor:127.0.0.1:7411,security=plain --stats-json /tmp/stats \
        -- /bin/far-nodes fill 24 >/tmp/out
    status=$?
    kill $donor
    wait $donor
    cat /tmp/out /tmp/donor
    [ $status = 0 ] && grep -q "wrong 0" /tmp/out
}

tiering() {
    aquifer tiering status
    aquifer tiering apply --dry-run | grep -q demotion_enabled || return 1
    aquifer tiering status --json | grep -q '"demotion":false' || return 1
    aquifer tiering apply && aquifer tiering status --json | grep -q '"demotion":true' || return 1
    # A cgroup of 24 MiB on a machine whose kernel may demote: what is reclaimed goes to node 1.
    aquifer tiering status --json >/tmp/tiering
    cat /tmp/tiering
    grep -q '"levels":\[{' /tmp/tiering && aquifer tiering apply --demotion off
}

damon() {
    aquifer tiering apply --damon on && aquifer tiering status | grep -q "migrate_cold to node 1" || return 1
    aquifer tiering apply --damon on && return 1
    aquifer tiering apply --damon off && aquifer tiering status | grep -q "damon *off"
}

# Two loop devices as one, by device-mapper, as docs/numa.md says.
striped() {
    for number in 0 1; do
        dd if=/dev/zero of=/tmp/half$number bs=1M count=24 2>/dev/null
        losetup /dev/loop$number /tmp/half$number || return 1
    done
    sectors=$(($(blockdev --getsz /dev/loop0) * 2))
    dmsetup --noudevrules --noudevsync create far --table "0 $sectors striped 2 256 /dev/loop0 0 /dev/loop1 0" || return 1
    run --dram 16MiB --tier flash:/dev/dm-0,size=40MiB -- /bin/far-nodes fill 24 >/tmp/out
    status=$?
    cat /tmp/out
    used=$(cat /sys/block/loop0/stat /sys/block/loop1/stat | awk '{ print ($5 > 0) }' | sort | uniq | tr '\n' ' ')
    dmsetup --noudevrules --noudevsync remove far
    losetup -d /dev/loop0
    losetup -d /dev/loop1
    rm -f /tmp/half0 /tmp/half1
    [ $status = 0 ] && [ "$used" = "1 " ]
}

cxl_region() {
    wait_for "test -e /sys/bus/cxl/devices/endpoint3 -a -e /sys/bus/cxl/devices/endpoint4" || return 1
    aquifer cxl list --bound 0x1000=256MiB --bound 0x1001=256MiB
    aquifer cxl create 0x1000 0x9999 && return 1
    aquifer cxl create 0x1000 0x1001 --size 300MiB && return 1
    aquifer cxl create 0x1000 0x1001 || return 1
    aquifer cxl list --json --bound 0x1000=256MiB --bound 0x1001=256MiB >/tmp/list
    cat /tmp/list
    grep -q '"bytes":536870912' /tmp/list && grep -q '"findings":\[\]' /tmp/list
}

cxl_device() {
    device=$(aquifer cxl list | sed -n 's/^\(dax[0-9.]*\) .*512MiB.*/\1/p')
    [ "$device" ] || return 1
    aquifer cxl offline $device || return 1
    wait_for "test -e /dev/$device" || return 1
    # Below the budget, so that nothing is written to it.
    run --dram 64MiB --tier dax:/dev/$device -- /bin/far-nodes fill 4 >/tmp/out || return 1
    cat /tmp/out
    grep -q "wrong 0" /tmp/out
}

cxl_online() {
    aquifer cxl online $device || return 1
    grep -q . /sys/devices/system/node/node2/meminfo || return 1
    [ "$(awk '/MemTotal/ { print $4 }' /sys/devices/system/node/node2/meminfo)" = 524288 ] || return 1
    refused dax:/dev/$device "use --tier node:2" || return 1
    # Not the whole program: its stack would be emulated, too.
    : >/tmp/now
    far-nodes hold 2 128 /tmp/now >/tmp/out
    cat /tmp/out
    grep -qx "pages n0=0 n1=0 n2=32 n3=0 absent=0" /tmp/out
}

# Whole programs over DRAM and the node of the CXL devices. The group cxl has node 1, too, and half of its share is there.
# QEMU 10 ends by SIGSEGV where an XSAVE begins in RAM and ends in emulated CXL memory; the dynamic linker does that on the
# stack when it resolves a function late, so it resolves all of them early.
cxl_spread() {
    export LD_BIND_NOW=1
    spread_to_cxl
    status=$?
    unset LD_BIND_NOW
    return $status
}

spread_to_cxl() {
    spread node0:1,node2:1 "n0=384 n1=0 n2=384 n3=0 absent=0" 768 && [ ! -s /tmp/err ] || return 1
    spread node2 "n0=0 n1=0 n2=64 n3=0 absent=0" 64 || return 1
    weighted_interleave || return 0
    spread dram:3,node2:1 "n0=576 n1=0 n2=192 n3=0 absent=0" 768 && grep -q "node0:3,node2:1" /tmp/err || return 1
    for shares in "3 576 96" "2 512 128" "1 384 192"; do
        set -- $shares
        aquifer tiering apply --weights default
        spread dram:$1,cxl:1 "n0=$2 n1=$3 n2=$3 n3=0 absent=0" 768 || return 1
    done
    aquifer tiering apply --weights default
    spread dram:2,node2:1 "n0=512 n1=0 n2=256 n3=0 absent=0" 768 && aquifer tiering apply --weights default
}

# Memory in use: its holder is named, or it is moved, with the program running.
cxl_unbind() {
    far-nodes hold 2 256 /tmp/release >/tmp/held &
    holder=$!
    wait_for "grep -q holding /tmp/held" || return 1
    aquifer cxl destroy region0 >/tmp/out 2>&1 && return 1
    cat /tmp/out
    grep -q "far-nodes ($holder, 1 MiB)" /tmp/out || return 1
    [ -e /sys/bus/cxl/devices/region0 ] || return 1
    aquifer cxl destroy region0 --migrate
    status=$?
    : >/tmp/release
    wait $holder
    cat /tmp/held
    [ $status = 0 ] && grep -q "n2=0" /tmp/held && [ ! -e /sys/bus/cxl/devices/region0 ] &&
        [ ! -e /sys/devices/system/node/node2/meminfo -o "$(awk '/MemTotal/ { print $4 }' /sys/devices/system/node/node2/meminfo)" = 0 ]
}

. /guest/far-bench.sh
check even-and-bound even_and_bound
if weighted_interleave; then check weighted weighted; else check weighted unweighted; fi
if weighted_interleave; then check by-bandwidth by_bandwidth; fi
check node-tier node_tier
check refusals refusals
check devdax-tier devdax_tier
check donor-and-chain donor_and_chain
check tiering tiering
if [ -e /sys/kernel/mm/damon/admin ]; then check damon damon; fi
check striped striped
check bench-memory bench_memory
check bench-node bench_node
if [ -e /sys/bus/cxl/devices/mem1 ]; then
    check cxl-region cxl_region
    check cxl-device cxl_device
    check cxl-online cxl_online
    check cxl-spread cxl_spread
    check cxl-bench cxl_bench
    check cxl-unbind cxl_unbind
    . /guest/far-pool.sh
fi
echo GUEST-END
poweroff -f

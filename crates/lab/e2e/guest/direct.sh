#!/bin/busybox sh
# SPDX-License-Identifier: Apache-2.0
# Copyright the Aquifer authors
#
# The first process of the guest in which programs reach hardware directly: a CXL switch's mailbox behind an IOMMU, where
# QEMU has one, 96 MiB of persistent memory at 896 MiB, and node 1 with memory alone. With aquifer_bare on the kernel's
# command line, the mailbox without an IOMMU, and nothing else.

. /guest/start.sh

fmapi() { timeout -s KILL $COMMAND_MAX aquifer-fmapi "$@"; }

# Files on persistent memory, mapped without the page cache.
fsdax_tier() {
    mkdir -p /mnt
    mkfs.ext4 -q -b 4096 /dev/pmem0 && mount -t ext4 -o dax /dev/pmem0 /mnt || return 1
    touch /mnt/far && chmod 600 /mnt/far
    run --dram 16MiB --tier dax:/mnt/far,size=40MiB --stats-json /tmp/stats -- /bin/far-nodes fill 24 >/tmp/out || return 1
    cat /tmp/out
    grep -q "wrong 0" /tmp/out && grep -q '"written_back_bytes": *[1-9]' /tmp/stats || return 1
    [ "$(stat -c %s /mnt/far)" = 41943040 ] || return 1
    # A file that holds more than its file system, and one of the page cache.
    run --dram 16MiB --tier dax:/mnt/far,size=4GiB -- /bin/far-nodes fill 1 >/tmp/out 2>&1 && return 1
    cat /tmp/out
    grep -q "give it less with size=" /tmp/out || return 1
    touch /root/far && chmod 600 /root/far
    run --dram 16MiB --tier dax:/root/far,size=8MiB -- /bin/far-nodes fill 1 >/tmp/out 2>&1 && return 1
    cat /tmp/out
    grep -q "use flash:" /tmp/out
}

# The same file again, by two programs at a time: the second one is refused. It grows no more.
fsdax_shared() {
    run --dram 16MiB --tier dax:/mnt/far -- /bin/far-nodes hold 0 20480 /tmp/first >/tmp/holding &
    first=$!
    n=0
    until grep -q holding /tmp/holding; do
        n=$((n + 1))
        [ $n -gt 6000 ] && return 1
        sleep 0.1
    done
    run --dram 16MiB --tier dax:/mnt/far -- /bin/far-nodes fill 1 >/tmp/out 2>&1
    status=$?
    : >/tmp/first
    wait $first
    cat /tmp/out
    [ $status != 0 ] && grep -q "is held by another instance" /tmp/out && umount /mnt
}

# DAMON counts accesses to node 1 while a program has its memory there.
damon_hot() {
    aquifer tiering hot && return 1
    aquifer tiering apply --damon on && aquifer tiering status | grep -q "hotness *damon" || return 1
    run --dram 64MiB --numa node1 --tier dram:size=16MiB -- /bin/far-nodes reread 24 >/tmp/reread &
    reader=$!
    # Until DAMON has met a page that was accessed; it looks at one page of each region at a time.
    n=0
    until aquifer tiering hot --over 1s --json >/tmp/hot && grep -q '"node":1' /tmp/hot; do
        n=$((n + 1))
        [ $n -gt 120 ] && break
    done
    cat /tmp/hot
    kill $reader
    wait $reader
    grep -q '"node":1' /tmp/hot && ! grep -q '"node":0' /tmp/hot || return 1
    aquifer tiering apply --damon off && aquifer tiering status | grep -q "hotness *none"
}

# Sets the PCI function of the switch's mailbox, and its directory. By VFIO it cannot be used yet, for this cause.
refused_by_vfio() { # cause
    function=$(basename $(dirname $(grep -l 0x0c0b00 /sys/bus/pci/devices/*/class)))
    directory=/sys/bus/pci/devices/$function
    fmapi identify vfio:$function >/tmp/out 2>&1 && return 1
    cat /tmp/out
    grep -q "$1" /tmp/out
}

# The mailbox by its file in sysfs, and then by VFIO: the same answers.
by_file_and_vfio() {
    echo 1 >$directory/enable
    fmapi identify mailbox:$directory/resource0 --json >/tmp/by-file || return 1
    fmapi ports mailbox:$directory/resource0 --json >>/tmp/by-file || return 1
    echo 0 >$directory/enable
    echo vfio-pci >$directory/driver_override && echo $function >/sys/bus/pci/drivers_probe
    fmapi identify vfio:$function --json >/tmp/by-vfio || return 1
    fmapi ports vfio:$function --json >>/tmp/by-vfio || return 1
    cat /tmp/by-file /tmp/by-vfio
    sed "s/vfio:$function/PEER/" /tmp/by-vfio >/tmp/one
    sed "s|mailbox:$directory/resource0|PEER|" /tmp/by-file >/tmp/other
    grep -q . /tmp/one && cmp /tmp/one /tmp/other
}

vfio_mailbox() {
    refused_by_vfio "has no driver" && grep -q "write vfio-pci to" /tmp/out && by_file_and_vfio || return 1
    # One program at a time has it.
    sleep 600 <>/dev/vfio/$(basename $(readlink $directory/iommu_group)) &
    holder=$!
    sleep 1
    fmapi identify vfio:$function >/tmp/out 2>&1
    status=$?
    kill $holder
    cat /tmp/out
    [ $status != 0 ] && grep -q "another program has the function" /tmp/out
}

# Without an IOMMU: refused, and also by the kernel, until the unsafe mode is enabled, if there is one.
vfio_bare() {
    refused_by_vfio "no IOMMU has" && [ ! -e $directory/iommu_group ] || return 1
    echo vfio-pci >$directory/driver_override && echo $function >/sys/bus/pci/drivers_probe
    [ ! -e $directory/driver ] || return 1
    unsafe=/sys/module/vfio/parameters/enable_unsafe_noiommu_mode
    if [ ! -e $unsafe ]; then
        grep -q "this kernel has no CONFIG_VFIO_NOIOMMU; turn the IOMMU on" /tmp/out
        return
    fi
    grep -q "unsafe mode is not enabled" /tmp/out || return 1
    echo 1 >$unsafe
    by_file_and_vfio && ls /dev/vfio/noiommu-*
}

if grep -q aquifer_bare /proc/cmdline; then
    check vfio-bare vfio_bare
    echo GUEST-END
    poweroff -f
fi
if [ -d /sys/bus/pci/drivers/vfio-pci ] && grep -q 0x0c0b00 /sys/bus/pci/devices/*/class; then
    check vfio-mailbox vfio_mailbox
fi
check fsdax-tier fsdax_tier
check fsdax-shared fsdax_shared
check damon-hot damon_hot
echo GUEST-END
poweroff -f

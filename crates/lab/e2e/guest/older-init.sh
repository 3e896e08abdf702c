#!/bin/busybox sh
# SPDX-License-Identifier: Apache-2.0
# Copyright the Aquifer authors
#
# The first process of a guest with an older kernel: runs the torture program under every delivery and exchange. Each
# part prints `PART name PASSED` or `PART name FAILED`, which crates/lab/e2e/tests/older_kernels.rs parses.

/bin/busybox mkdir -p /proc /sys /dev /tmp /run /root
/bin/busybox --install -s /bin
export PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
mkdir -p /dev/shm
mount -t tmpfs tmpfs /dev/shm
mount -t tmpfs tmpfs /tmp
echo "GUEST-KERNEL $(uname -r)"
aquifer doctor
for delivery in signal listener; do
    for exchange in auto copy; do
        name=$delivery-$exchange
        if timeout -s KILL 400 aquifer run --dram 16MiB --tier dram: --delivery $delivery --exchange $exchange \
            -- /bin/torture 7 2 40 2 llltkvmapfs /tmp >/tmp/out 2>&1; then
            echo "PART $name PASSED"
        else
            echo "PART $name FAILED"
            tail -n 20 /tmp/out
        fi
    done
done
# This kernel cannot move pages: a request for it is refused, with the kernel's version.
if aquifer run --dram 16MiB --tier dram: --exchange move -- /bin/torture 7 1 20 2 l /tmp >/tmp/out 2>&1; then
    echo "PART move-refused FAILED"
elif grep -q 6.8 /tmp/out; then
    echo "PART move-refused PASSED"
else
    echo "PART move-refused FAILED"
    cat /tmp/out
fi
echo GUEST-END
poweroff -f

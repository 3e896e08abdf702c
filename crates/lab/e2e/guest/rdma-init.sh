#!/bin/busybox sh
# SPDX-License-Identifier: Apache-2.0
# Copyright the Aquifer authors
#
# The first process of the guest with Soft-RoCE: mounts file systems, loads the modules, creates the device, and runs
# the rest.

/bin/busybox mkdir -p /proc /sys /dev /tmp /run /root /dev/shm
/bin/busybox --install -s /bin
export PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
mkdir -p /dev/shm
mount -t tmpfs tmpfs /dev/shm
mount -t tmpfs tmpfs /tmp
for module in /modules/*.ko; do insmod "$module" || echo "insmod $module failed"; done
/guest/ip link set lo up
/guest/ip link add veth0 type veth peer name veth1
/guest/ip addr add 10.0.0.1/24 dev veth0
/guest/ip link set veth0 up
/guest/ip link set veth1 up
/guest/rdma link add rxe0 type rxe netdev veth0
/guest/rdma link
sh /guest/rdma.sh
echo GUEST-END
poweroff -f

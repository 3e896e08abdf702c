# SPDX-License-Identifier: Apache-2.0
# Copyright the Aquifer authors
#
# What the first process of the guest with far memory does first: file systems, the commands of busybox, modules.

/bin/busybox mkdir -p /proc /sys /dev /tmp /run /root
/bin/busybox --install -s /bin
export PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
mkdir -p /dev/shm
mount -t tmpfs tmpfs /dev/shm
mount -t tmpfs tmpfs /tmp
for module in /modules/*.ko; do
    [ -e "$module" ] || continue
    insmod "$module" || echo "insmod $module failed"
done
echo "GUEST-KERNEL $(uname -r)"

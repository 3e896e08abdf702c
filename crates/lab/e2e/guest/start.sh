# SPDX-License-Identifier: Apache-2.0
# Copyright the Aquifer authors
#
# What the first process of a guest that runs parts does first: file systems, the commands of busybox, modules. And what
# all such scripts use. At its end each part prints `PART name PASSED` or `PART name FAILED`, which
# crates/lab/e2e/src/scripted_guest.rs parses; it says by aquifer_parts= and aquifer_left_out= on the kernel's command
# line which parts run.

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
# From here, the kernel's messages only follow a part that fails: on the console they could begin within a line of it.
dmesg -n 1

# In seconds of the guest's clock, and in tenths of one: long, because the machine that emulates it may be busy.
COMMAND_MAX=600
WAIT_MAX=6000

asked=$(sed -n 's/.*aquifer_parts=\([^ ]*\).*/,\1,/p' /proc/cmdline)
left_out=$(sed -n 's/.*aquifer_left_out=\([^ ]*\).*/,\1,/p' /proc/cmdline)

check() { # name, command...: passes if the command does; says how long it took
    name=$1
    shift
    case "${asked:-,$name,}" in *,$name,*) ;; *) return ;; esac
    case "$left_out" in *,$name,*) return ;; esac
    begun=$(date +%s)
    "$@" >/tmp/part 2>&1
    outcome=$?
    took="after $(($(date +%s) - begun)) s"
    if [ $outcome = 0 ]; then
        echo "PART $name PASSED $took"
    else
        echo "PART $name FAILED $took"
        dmesg | tail -n 10
        tail -n 40 /tmp/part
    fi
}

wait_for() { # command
    n=0
    until eval "$1" >/dev/null 2>&1; do
        n=$((n + 1))
        [ $n -gt $WAIT_MAX ] && { echo "waited too long for: $1"; return 1; }
        sleep 0.1
    done
}

run() { timeout -s KILL $COMMAND_MAX aquifer run "$@"; }

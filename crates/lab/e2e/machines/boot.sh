#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Copyright the Aquifer authors
#
# boot.sh NAME DIRECTORY ADDRESS SWITCH LAYER [WORD of systemd-nspawn]...: runs a machine until standard input ends.
#
# Its files are those of this machine, with those of LAYER over them unless that is '-'; what it writes goes below
# DIRECTORY. It has one interface, eth1, at a bridge in the network namespace of the process SWITCH.
# To be started by `setsid unshare --net --mount --propagation private`: the mount and the network end with this script,
# however the test ends. The process id of systemd-nspawn is in DIRECTORY/process. Removes everything that it made.
set -eu
name=$1 directory=$2 address=$3 switch=$4 layer=$5
shift 5
exec 3<&0 </dev/null

groups=
for top in /sys/fs/cgroup/unified /sys/fs/cgroup/systemd /sys/fs/cgroup; do
    [ -e "$top/cgroup.procs" ] && groups="$groups $top/aquifer-$$"
done

clean() {
    [ -z "${machine:-}" ] || { kill -KILL $(cat "/proc/$machine/task/$machine/children") || true; wait "$machine" || true; }
    for group in $groups; do
        echo $$ >"${group%/*}/cgroup.procs" || true
        # Killed processes need a moment to disappear.
        for _ in 1 2 3 4 5 6 7 8 9 10; do
            find "$group" -depth -type d -exec rmdir {} \; 2>/dev/null || true
            [ -e "$group" ] || break
            sleep 0.2
        done
    done
    umount "$directory/root" || true
    rm -rf "$directory"
}
trap clean EXIT

# Each machine has its own cgroups; otherwise one machine would end the processes of another.
for group in $groups; do
    mkdir "$group"
    echo $$ >"$group/cgroup.procs"
done

ip link set lo up
ip link add eth1 type veth peer name "$name" netns "$switch"
nsenter --target "$switch" --net ip link set "$name" master switch up
ip address add "$address/24" dev eth1
ip link set eth1 up

mkdir -p "$directory/upper" "$directory/work" "$directory/root"
# Copied, because one layer of an overlay may not be within another.
[ "$layer" = - ] || cp -a "$layer/." "$directory/upper/"
mount -t overlay overlay -o "lowerdir=/,upperdir=$directory/upper,workdir=$directory/work" "$directory/root"
cd "$directory/root"
# Without a machine ID, systemd would enable all installed units when the machine first starts.
rm -f etc/machine-id etc/resolv.conf
tr -d - </proc/sys/kernel/random/uuid >etc/machine-id
echo "$name" >etc/hostname
: >etc/resolv.conf
# Container images forbid packages to start services; a machine must allow it.
rm -rf etc/systemd/system/*.wants etc/aquifer usr/local/bin/aquifer usr/sbin/policy-rc.d var/lib/aquifer
cd /

trap 'exit 0' TERM
(
    cat <&3 >/dev/null
    kill -TERM $$
) &
echo started
# The exit status of a machine that is to be restarted.
status=133
while [ "$status" = 133 ]; do
    systemd-nspawn --quiet --directory="$directory/root" --boot --register=no --keep-unit --machine="aquifer-$$" \
        --network-namespace-path="/proc/$$/ns/net" --capability=CAP_NET_ADMIN --link-journal=no --console=read-only \
        "$@" >>"$directory/console" 2>&1 &
    machine=$!
    echo "$machine" >"$directory/process"
    status=0
    wait "$machine" || status=$?
done

# SPDX-License-Identifier: Apache-2.0
# Copyright the Aquifer authors
#
# The steps of the guest with Soft-RoCE, after its init has created the device rxe0 at 10.0.0.1. At its end each part
# prints `PART name PASSED` or `PART name FAILED`, which crates/lab/e2e/tests/rdma.rs parses. For busybox's sh.
#
# Each wait has a limit, in seconds of the guest's clock: a list of tests, a donor's start, a program's end.

TESTS_MAX=900
DONOR_MAX=120
PROGRAM_MAX=600
COMMAND_MAX=120

TIER=donor:rdma:10.0.0.1:7411,security=plain

part() { # name status
    if [ "$2" = 0 ]; then echo "PART $1 PASSED"; else echo "PART $1 FAILED"; fi
}

# One figure of the donor's status.
figure() { # name port
    timeout -s KILL $COMMAND_MAX aquifer donor status 10.0.0.1:$2 --security plain --json |
        sed "s/.*\"$1\":\([0-9]*\).*/\1/"
}

lend() { # port
    aquifer donor --size 128MiB --listen 10.0.0.1:$1 --security plain --rdma auto --control /tmp/control.$1 \
        >/tmp/donor.$1 2>&1 &
    DONOR=$!
    wait_for "grep -q lends /tmp/donor.$1"
}

wait_for() { # command
    n=0
    until eval "$1" >/dev/null 2>&1; do
        n=$((n + 1))
        [ $n -gt $((DONOR_MAX * 5)) ] && { echo "waited too long for: $1"; cat /tmp/donor.* /tmp/*.err; return 1; }
        sleep 0.2
    done
}

# Starts the verifying program, and waits until it has filled its memory.
verify() { # name tier
    timeout -s KILL $PROGRAM_MAX aquifer run --dram 24MiB --tier "$2" --stats-json /tmp/$1.json \
        -- /bin/verify /tmp/$1 >/tmp/$1.out 2>/tmp/$1.err &
    PROGRAM=$!
    wait_for "test -e /tmp/$1.ready"
}

# Makes it verify all of its memory once more, and end. Its output: wrong W lost L longest MS steps S.
finish() { # name
    : >/tmp/$1
    wait $PROGRAM
    STATUS=$?
    [ $STATUS = 0 ] || { grep -v 'a fetch from the tier failed' /tmp/$1.err | tail -n 20; cat /tmp/donor.*; }
    read _ WRONG _ LOST _ LONGEST _ </tmp/$1.out
    echo "$1: status $STATUS, wrong ${WRONG:-?}, lost ${LOST:-?}, longest step ${LONGEST:-?} ms"
}

doctor() {
    timeout -s KILL $COMMAND_MAX aquifer doctor | grep rdma
    timeout -s KILL $COMMAND_MAX aquifer doctor --json | grep '"name":"rdma"' | grep -q '"found":true'
    part doctor $?
}

# Without a device, the error says so.
refused() {
    timeout -s KILL $COMMAND_MAX aquifer donor --size 16MiB --listen 10.0.0.1:7499 --security plain --rdma mlx5_0 >/tmp/refused 2>&1
    cat /tmp/refused
    grep -q 'name one of rxe0' /tmp/refused
    part no-such-device $?
    aquifer donor --size 16MiB --listen 10.0.0.1:7498 --security plain >/tmp/tcp 2>&1 &
    TCP=$!
    wait_for "grep -q lends /tmp/tcp"
    timeout -s KILL $COMMAND_MAX aquifer run --dram 24MiB --tier donor:rdma:10.0.0.1:7498,security=plain \
        -- /bin/verify /tmp/none >/tmp/refused 2>&1
    cat /tmp/refused
    grep -q 'does not lend over RDMA' /tmp/refused
    part donor-without-rdma $?
    kill -9 $TCP
}

# The donor's processor serves no byte of what is read and written; access to a revoked slab is an error.
lending() {
    lend 7411
    timeout -s KILL $COMMAND_MAX aquifer doctor --tier $TIER,size=16MiB
    timeout -s KILL $COMMAND_MAX aquifer doctor --tier donor:10.0.0.1:7411,security=plain,size=16MiB
    reads_before=$(figure reads_total 7411)
    writes_before=$(figure writes_total 7411)
    verify whole $TIER
    sleep 2
    finish whole
    reads=$(($(figure reads_total 7411) - reads_before))
    writes=$(($(figure writes_total 7411) - writes_before))
    echo "reads that the donor's processor answered: $reads, writes: $writes"
    [ "$STATUS $WRONG $LOST $reads $writes" = "0 0 0 0 0" ]
    part verifying $?
    verify revoked $TIER
    timeout -s KILL $COMMAND_MAX aquifer donor reclaim /tmp/control.7411 --bytes 128MiB --within 1ms
    sleep 1
    finish revoked
    [ "$STATUS $WRONG" = "0 0" ] && [ "$LOST" -gt 0 ]
    part revoked $?
    kill -9 $DONOR
}

killed() {
    lend 7412
    verify killed donor:rdma:10.0.0.1:7412,security=plain
    kill -9 $DONOR
    sleep 1
    finish killed
    [ "$STATUS $WRONG" = "0 0" ] && [ "$LOST" -gt 0 ]
    part killed $?
}

# One of two donors with the same bytes is killed: the program does not notice.
mirrored() {
    lend 7413
    FIRST=$DONOR
    lend 7414
    verify mirrored "donor:rdma:10.0.0.1:7413+rdma:10.0.0.1:7414,mirror=2,security=plain"
    kill -9 $FIRST
    sleep 3
    finish mirrored
    [ "$STATUS $WRONG $LOST" = "0 0 0" ] && [ "$LONGEST" -le 2000 ]
    part mirrored $?
    kill -9 $DONOR
}

# Runs a list of tests that require the device.
tests() { # part program words
    name=$1
    shift
    AQUIFER_RDMA=required timeout -s KILL $TESTS_MAX "$@" --test-threads 1
    part $name $?
}

verbs() { tests verbs /bin/verbs; }
leases() { tests leases /bin/rdma-donor; }
transports() { tests transports /bin/transports rdma::; }

for step in $(sed -n 's/.*aquifer_steps=\([^ ]*\).*/\1/p' /proc/cmdline | tr ',' ' '); do
    read before _ </proc/uptime
    $step
    read after _ </proc/uptime
    echo "STEP $step took from $before to $after"
done

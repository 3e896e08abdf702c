# SPDX-License-Identifier: Apache-2.0
# Copyright the Aquifer authors
#
# A fabric manager, a switch and this host's agent, in the guest: what is bound becomes memory here, and nothing is
# unbound before its memory is gone. The switch is the software switch, which has no memory of this guest; the device
# that the manager binds is in QEMU. The agent finds it as on any host, by the serial number in its name. The operator
# outside plugs and pulls it (crates/lab/e2e/src/operator.rs). Serial numbers: 0x1002 is plugged after the bind, 0x1000
# is here from the start, 0x1001 has another size than the switch says.
#
# Sourced by far-nodes.sh, whose functions it uses.

HOST=web-1

cat >/tmp/switch.json <<'END'
{"serial_number": 4095, "ports": [{"role": "downstream"}, {"role": "downstream"}, {"role": "downstream"},
 {"role": "upstream"}], "virtual_switches": [{"upstream_port": 3, "vppbs": 8}],
 "devices": [{"kind": "sld", "ports": [0], "memory_mib": 256}, {"kind": "sld", "ports": [1], "memory_mib": 512},
 {"kind": "sld", "ports": [2], "memory_mib": 256}]}
END
cat >/tmp/fabricd.toml <<'END'
state = "/run/fabricd"
listen = "127.0.0.1:7443"
[peers]
kind = "registered"
[control]
listen = "127.0.0.1:7444"
[sessions]
logins-per-minute = 1000
[[switches]]
name = "s0"
address = "unix:/run/switch.sock"
wipe = "on-unbind"
answer-ms = 5000
background-seconds = 60
hosts = { web-1 = [3] }
END
cat >/tmp/pool.json <<'END'
{"pools": {"plugged": {"devices": ["s0.1002"]}, "here": {"devices": ["s0.1000"]}, "misfit": {"devices": ["s0.1001"]}},
 "zones": {"lab": {"quota": "4GiB", "hosts": ["web-1"]}}}
END

agent() { # node or device, whether memory in use is moved before an unbind
    cat >/tmp/agent.toml <<END
host = "$HOST"
socket = "/run/agent.sock"
state = "/run/agent"
[manager]
addresses = ["127.0.0.1:7444"]
[cxl]
memory = "$1"
nodes = "each"
migrate = $2
END
    aquifer-agentd --config /tmp/agent.toml >/tmp/agent.out 2>>/tmp/agent.err &
    agent=$!
    wait_for "grep -q serving /tmp/agent.out" || { cat /tmp/agent.err; return 1; }
}

fabric() { timeout -s KILL $COMMAND_MAX aquifer fabric "$@"; }

# As after a crash: the next agent has only what was stored.
agent_again() { # as agent
    kill -KILL $agent
    wait $agent
    agent "$@"
}

operator() { # plug, pull or yank
    exec 3<>/dev/ttyS1
    echo "$1" >&3
    read -r answer <&3
    exec 3>&-
    echo "the operator: $answer"
    [ "$answer" = done ]
}

status_says() { # pattern
    wait_for "aquifer fabric status | grep -q '$1'" || { aquifer fabric status; cat /tmp/agent.err; return 1; }
}

node_kib() { awk '/MemTotal/ { print $4 }' /sys/devices/system/node/node$1/meminfo 2>/dev/null || echo 0; }

# How many vPPBs the switch has bound.
bound() { aquifer fabric devices --json >/tmp/devices; grep -o '"bound":{' /tmp/devices | wc -l; }

pool_start() {
    stty -F /dev/ttyS1 raw -echo
    ip link set lo up
    aquifer-cxl-switchd --config /tmp/switch.json --no-tcp --socket /run/switch.sock >/tmp/switch.out 2>&1 &
    wait_for "test -S /run/switch.sock" || { cat /tmp/switch.out; return 1; }
    aquifer-fabricd --config /tmp/fabricd.toml >/tmp/fabricd.out 2>&1 &
    wait_for "test -s /run/fabricd/initial-password && grep -q listening /tmp/fabricd.out" || { cat /tmp/fabricd.out; return 1; }
    agent node false || return 1
    fabric login admin --password-stdin </run/fabricd/initial-password || return 1
    wait_for "aquifer fabric apply /tmp/pool.json" || { fabric apply /tmp/pool.json; cat /tmp/fabricd.out; return 1; }
    fabric devices
    fabric hosts
}

volume() { # name, size, pool
    fabric create $1 --size $2 --pool $3 --zone lab --class cxl && fabric bind $1 $HOST
}

# The manager binds, and the agent reports that nothing has come. The operator plugs the device, and a node appears.
pool_bind() {
    volume hot 256MiB plugged && status_says '0x1002 was bound and is not here' && operator plug || return 1
    fabric status --until-settled || return 1
    cat /tmp/agent.err
    [ "$(node_kib 2)" = 262144 ] && [ "$(bound)" = 1 ] || { echo "node 2 has $(node_kib 2) KiB"; aquifer cxl list; return 1; }
}

# A decoder that is in use is reported with what to do. When that is done, the device gets its own node.
pool_busy() {
    aquifer cxl create 0x1000 0x1001 >/tmp/out || { cat /tmp/out; return 1; }
    region=$(ls -d /sys/bus/cxl/devices/region* | sed 's,.*/,,' | tail -n 1)
    volume cold 256MiB here && status_says "$region interleaves .* destroy it with .aquifer cxl destroy $region" || return 1
    aquifer cxl destroy $region && fabric status --until-settled || return 1
    aquifer cxl list
    [ "$(node_kib 3)" = 262144 ] && [ "$(bound)" = 2 ]
}

# One program over DRAM, the node that was bound, and a donor.
pool_chain() {
    lend node:1 || return 1
    run --dram 16MiB --tier node:2,size=2MiB --tier donor:127.0.0.1:7411,security=plain --stats-json /tmp/stats \
        -- /bin/far-nodes fill 22 >/tmp/out
    status=$?
    kill $donor
    wait $donor
    cat /tmp/out
    [ $status = 0 ] && grep -q "wrong 0" /tmp/out || return 1
    # The figures of each level follow its name.
    for level in node donor; do
        grep -A 20 "\"name\": *\"$level\"" /tmp/stats | grep '"used_bytes"' | head -n 1 | grep -q '[1-9]' || return 1
    done
}

# One mapping over DRAM and the node that was bound, by the kernel's weights, exactly: 252 pages are whole turns of each.
# far-nodes.sh spreads whole programs.
pool_spread() {
    weighted_interleave || return 0
    for shares in "3 189 63" "2 168 84" "1 126 126"; do
        set -- $shares
        aquifer tiering apply --weights node0:$1,node2:1 && far-nodes interleave 0 2 252 >/tmp/out || return 1
        cat /tmp/out
        grep -qx "pages n0=$2 n1=0 n2=$3 n3=0 absent=0" /tmp/out || return 1
    done
    aquifer tiering apply --weights default
}

# The next agent hands the memory to the program that opens the device, and the one after it takes it back.
pool_dax() {
    agent_again device true && wait_for "ls /dev/dax* && aquifer fabric status --until-settled" || return 1
    aquifer cxl list
    device=$(aquifer cxl list | sed -n 's/^\(dax[0-9.]*\) .*256MiB.*/\1/p' | head -n 1)
    run --dram 16MiB --tier dax:/dev/$device --stats-json /tmp/stats -- /bin/far-nodes fill 17 >/tmp/out || return 1
    cat /tmp/out
    grep -q "wrong 0" /tmp/out && grep -q '"written_back_bytes": *[1-9]' /tmp/stats || return 1
    [ "$(node_kib 2)" = 0 ] && agent_again node false &&
        wait_for '[ "$(node_kib 2) $(node_kib 3)" = "262144 262144" ]'
}

# A region that cannot be made is reported, with what to do.
pool_misfit() {
    volume large 512MiB misfit && status_says '268435456 bytes and 536870912 were bound; unbind it and bind it again' &&
        fabric unbind large && fabric release large && fabric status --until-settled
}

# Memory in use keeps the device: its holder is named, and nothing is unbound.
pool_refused() {
    rm -f /tmp/release
    far-nodes hold 2 256 /tmp/release >/tmp/held &
    holder=$!
    wait_for "grep -q holding /tmp/held" && fabric unbind hot && status_says "far-nodes ($holder, 1 MiB)" || return 1
    [ "$(node_kib 2)" = 262144 ] && [ "$(bound)" = 2 ]
}

# The agent is killed, and the next one moves the memory away while its holder runs. Then the operator pulls the device.
pool_drained() {
    agent_again node true && wait_for '[ "$(bound)" = 1 ]' || { fabric status; cat /tmp/agent.err; return 1; }
    [ "$(node_kib 2)" = 0 ] || { echo "node 2 has $(node_kib 2) KiB"; return 1; }
    : >/tmp/release
    wait $holder
    cat /tmp/held
    grep -q "n2=0" /tmp/held && operator pull || return 1
    wait_for '! grep -q 0x1002 /sys/bus/cxl/devices/mem*/serial' || return 1
    fabric unbind cold && fabric release cold && fabric status --until-settled &&
        [ "$(bound)" = 0 ] && [ -z "$(ls -d /sys/bus/cxl/devices/region* 2>/dev/null)" ]
}

# What was unbound is bound again.
pool_rebound() {
    volume again 256MiB here && fabric status --until-settled || return 1
    [ "$(node_kib 2)" = 262144 ] && [ "$(bound)" = 1 ]
}

# The operator pulls a device while a program reads what it has there. The program ends with an error, and has read
# nothing that it has not written. Last, because the kernel keeps the node without its memory until the next boot.
pool_pulled() {
    timeout -s KILL $COMMAND_MAX aquifer run --dram 16MiB --tier node:2,size=16MiB -- /bin/far-nodes reread 18 >/tmp/reads 2>/tmp/err &
    reader=$!
    wait_for "grep -q read /tmp/reads" && operator yank || return 1
    wait $reader
    status=$?
    tail -n 2 /tmp/reads
    cat /tmp/err
    fabric status
    cat /tmp/err >/dev/console
    [ $status != 0 ] && ! grep -q wrong /tmp/reads && grep -q "was ended by SIGBUS" /tmp/err
}

for part in start bind busy chain spread dax misfit refused drained rebound pulled; do check pool-$part pool_$part; done

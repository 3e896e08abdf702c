// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The fabric manager with the CXL switch of QEMU: its ports and devices, devices that come and go, dynamic capacity
//! with the memory behind it, and two machines that share a device's memory.
//!
//! QEMU runs without a guest, and the manager reaches the switch's mailbox through a relay in this process. QEMU 10
//! leaves commands for dynamic capacity to its monitor; the relay carries them there.

mod site;
mod switch;

use std::path::Path;
use std::time::{Duration, Instant};

use aquifer_fmapi_client::{Mailbox, SystemClock};
use aquifer_qtest::{Bus, Capacity, DEVICE_BYTES, DcHost, Decoders, Machine, Qemu, REGION_BYTES, Relay, find, shared};
use aquifer_test_support::skip;
use serde_json::{Value, json};
use site::daemon::{Daemon, WAIT_MAX};
use site::{ENDPOINTS, SWITCHES, directory};

/// The port with the dynamic capacity, and its device's serial number.
const DC_PORT: u8 = 1;
const WORD: u64 = 0x00ab_cdef_0123_4567;
const MIB: u64 = 1 << 20;

/// Not a test: the program of the managers that the others start.
#[test]
fn manager_program() {
    site::daemon::serve_if_asked();
}

/// A machine with its host and the manager's way to its switch.
struct Rig {
    qemu: Qemu,
    bus: Bus,
    host: Option<DcHost>,
}

impl Rig {
    fn start(machine: &Machine, program: &Path, directory: &Path, name: &str) -> Rig {
        let qemu = machine.start(program, &directory.join(name));
        let bus = Bus::new(&qemu.line);
        let mailbox = Mailbox::new("mailbox:qemu".into(), Box::new(bus.switch_mailbox()), SystemClock::shared());
        let host = machine.dynamic.first().map(|port| DcHost::new(bus.memory_device(*port)));
        let capacity = host.clone().map(|host| Capacity::new(DC_PORT, qemu.monitor.clone(), host));
        let socket = directory.join(format!("{name}.s"));
        Relay::start(&socket, shared(mailbox.expect("a mailbox")), capacity.map(|it| Box::new(it) as _));
        Rig { qemu, bus, host }
    }

    fn host(&self) -> &DcHost {
        self.host.as_ref().expect("a device with dynamic capacity")
    }
}

/// A manager of these switches, `s0` and so on. Host `h00N` is at the upstream port of switch `sN`.
/// QEMU's device has no command that wipes what is released, so the configuration says `wipe = "on-unbind"`.
struct ManagerProcess {
    daemon: Daemon,
    token: String,
}

impl ManagerProcess {
    fn start(directory: &Path, upstream: u8, switches: u32) -> ManagerProcess {
        let section = |number: u32| {
            let socket = directory.join(format!("s{number}.s"));
            format!(
                "[[switches]]\nname = \"s{number}\"\naddress = \"unix:{}\"\nwipe = \"on-unbind\"\n\
                 hosts = {{ h{number:03} = [{upstream}] }}\n",
                socket.display()
            )
        };
        let sections: String = (0..switches).map(section).collect();
        let daemon = Daemon::start(directory, switches, &sections);
        let token = daemon.login();
        ManagerProcess { daemon, token }
    }

    fn get(&self, path: &str) -> Value {
        let answer = self.daemon.ask("GET", path, &self.token, "");
        assert_eq!(answer.status, 200, "{path}: {answer:?}");
        answer.body
    }

    fn has(&self, path: &str) -> bool {
        self.daemon.ask("GET", path, &self.token, "").status == 200
    }

    fn wait(&self, what: &str, mut holds: impl FnMut(&ManagerProcess) -> bool) {
        let begun = Instant::now();
        while !holds(self) {
            assert!(begun.elapsed() < WAIT_MAX, "{what}: {}", self.get("/redfish/v1/Oem/Aquifer"));
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Declares volumes of a pool of the devices with dynamic capacity of all switches.
    fn apply(&self, switches: u32, volumes: &Value) {
        let devices: Vec<String> = (0..switches).map(|number| format!("s{number}.1001")).collect();
        let hosts: Vec<String> = (0..switches).map(|number| format!("h{number:03}")).collect();
        let declared = json!({
            "pools": { "main": { "devices": devices } },
            "zones": { "lab": { "quota": "16TiB", "hosts": hosts } },
            "volumes": volumes,
        });
        let path = "/redfish/v1/Oem/Aquifer/Actions/Aquifer.Apply";
        let body = json!({ "Declaration": declared }).to_string();
        let applied = self.daemon.ask("POST", path, &self.token, &body);
        assert_eq!(applied.status, 200, "{applied:?}");
    }

    fn added(&self, switch: &str) -> Value {
        self.get(&format!("{ENDPOINTS}/Device.{switch}.1001"))["Oem"]["Aquifer"]["Added"].clone()
    }
}

/// Finds QEMU, or reports that the test is skipped.
fn program() -> Option<std::path::PathBuf> {
    find().map_err(skip).ok()
}

fn finish(manager: ManagerProcess, rigs: Vec<Rig>, directory: &Path) {
    drop((manager, rigs));
    std::fs::remove_dir_all(directory).expect("removed");
}

#[test]
fn the_ports_and_devices_of_qemus_switch_are_read_and_devices_come_and_go() {
    let Some(program) = program() else { return };
    let directory = directory("q");
    let machine = Machine { ports: 3, devices: vec![0, 1], ..Machine::default() };
    let mut rig = Rig::start(&machine, &program, &directory, "s0");
    let manager = ManagerProcess::start(&directory, machine.ports, 1);
    let port = |number: u8| format!("{SWITCHES}/s0/Ports/{number}");
    manager.wait("the switch is read", |manager| manager.has(&port(3)));
    let body = |number| manager.get(&port(number));
    assert_eq!(body(3)["PortType"], "UpstreamPort");
    let kind = |manager: &ManagerProcess, number| manager.get(&port(number))["CXL"]["ConnectedDeviceType"].clone();
    let (filled, empty) = (kind(&manager, 0), kind(&manager, 2));
    assert_eq!((&filled, kind(&manager, 1)), (&json!("Type3MLD"), json!("Type3MLD")));
    assert_ne!(empty, filled);
    // One virtual switch with fixed bindings: everything is the host's at the upstream port.
    assert!(manager.has(&format!("{SWITCHES}/s0/VCSs/0")));
    assert!(!manager.has(&format!("{SWITCHES}/s0/VCSs/1")));
    let add = json!({ "qom-type": "memory-backend-ram", "id": "hot", "share": true, "size": DEVICE_BYTES });
    rig.qemu.monitor.execute("object-add", add).expect("memory");
    let add = json!({ "driver": "cxl-type3", "bus": "swport2", "id": "mem2", "volatile-memdev": "hot", "sn": 4098 });
    rig.qemu.monitor.execute("device_add", add).expect("a device");
    manager.wait("the device is found", |manager| kind(manager, 2) == filled);
    rig.bus.power_off(2);
    manager.wait("the device is missed", |manager| kind(manager, 2) == empty);
    assert_eq!(kind(&manager, 1), filled, "the others stay");
    assert!(rig.qemu.is_running(), "QEMU has survived");
    finish(manager, vec![rig], &directory);
}

#[test]
fn dynamic_capacity_of_qemus_device_is_added_with_a_tag_used_and_released() {
    let Some(program) = program() else { return };
    let directory = directory("d");
    let machine = Machine { ports: 3, devices: vec![0, DC_PORT], dynamic: vec![DC_PORT], shared: None };
    let mut rig = Rig::start(&machine, &program, &directory, "s0");
    let memory = Decoders::program(&rig.qemu, &rig.bus, DC_PORT, DEVICE_BYTES + 2 * REGION_BYTES);
    let manager = ManagerProcess::start(&directory, machine.ports, 1);
    manager.wait("the device is read", |manager| manager.has(&format!("{ENDPOINTS}/Device.s0.1001")));
    let volume =
        |size: &str| json!({ "spec": { "size": size, "pool": "main", "zone": "lab", "class": "cxl" }, "host": "h000" });
    manager.apply(1, &json!({ "a": volume("64MiB"), "b": volume("32MiB") }));
    let mut taken = 0;
    manager.wait("both are offered and accepted", |manager| {
        taken += rig.host().answer();
        taken >= 2 && manager.added("s0") == "96MiB"
    });
    manager.daemon.settle(&manager.token);
    let (mut extents, _) = rig.host().extents();
    extents.sort_by_key(|extent| extent.start);
    let sizes: u64 = extents.iter().map(|extent| extent.length).sum();
    assert_eq!(sizes, 96 * MIB, "{extents:?}");
    // What was added holds data; what was not, does not.
    for extent in &extents {
        memory.write(extent.start, WORD);
        memory.write(extent.start + extent.length - 8, WORD);
        assert_eq!((memory.read(extent.start), memory.read(extent.start + extent.length - 8)), (WORD, WORD));
    }
    let beyond = extents.iter().map(|extent| extent.start + extent.length).max().expect("an extent");
    memory.write(beyond, WORD);
    assert_eq!(memory.read(beyond), 0);
    // One volume goes; the capacity of the other one, which has another tag, stays.
    manager.apply(1, &json!({ "b": volume("32MiB") }));
    manager.wait("the other one is released", |manager| {
        rig.host().answer();
        manager.added("s0") == "32MiB"
    });
    let (kept, _) = rig.host().extents();
    assert_eq!(kept.iter().map(|extent| extent.length).sum::<u64>(), 32 * MIB, "{kept:?}");
    let freed =
        extents.iter().find(|extent| !kept.iter().any(|kept| kept.start == extent.start)).expect("one is freed");
    memory.write(freed.start, WORD);
    assert_eq!(memory.read(freed.start), 0, "it is not backed any more");
    assert_eq!(memory.read(kept[0].start), WORD);
    assert!(rig.qemu.is_running(), "QEMU has survived");
    finish(manager, vec![rig], &directory);
}

#[test]
fn two_machines_share_a_devices_memory_as_far_as_each_has_capacity_there() {
    let Some(program) = program() else { return };
    let directory = directory("t");
    let shared = Some(directory.join("pool"));
    let machine = Machine { ports: 2, devices: vec![0, DC_PORT], dynamic: vec![DC_PORT], shared };
    let rigs: Vec<Rig> = ["s0", "s1"].iter().map(|name| Rig::start(&machine, &program, &directory, name)).collect();
    let manager = ManagerProcess::start(&directory, machine.ports, 2);
    for switch in ["s0", "s1"] {
        let path = format!("{ENDPOINTS}/Device.{switch}.1001");
        manager.wait("the devices are read", |manager| manager.has(&path));
    }
    let memory: Vec<Decoders> = rigs
        .iter()
        .map(|rig| Decoders::program(&rig.qemu, &rig.bus, DC_PORT, DEVICE_BYTES + 2 * REGION_BYTES))
        .collect();
    let volume = |host: u32| json!({ "spec": { "size": "16MiB", "pool": "main", "zone": "lab", "class": "cxl" }, "host": format!("h{host:03}") });
    manager.apply(2, &json!({ "a": volume(0) }));
    manager.wait("the first host has capacity", |manager| {
        rigs[0].host().answer();
        manager.added("s0") == "16MiB"
    });
    let at = rigs[0].host().extents().0[0].start;
    memory[0].write(at, WORD);
    assert_eq!(memory[0].read(at), WORD);
    assert_eq!(memory[1].read(at), 0, "the second host has no capacity yet");
    manager.apply(2, &json!({ "a": volume(0), "b": volume(1) }));
    manager.wait("the second host has capacity", |manager| {
        rigs[1].host().answer();
        manager.added("s1") == "16MiB"
    });
    assert_eq!(rigs[1].host().extents().0[0].start, at);
    assert_eq!(memory[1].read(at), WORD, "it sees what the first one has written");
    finish(manager, rigs, &directory);
}

// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! A manager with a real software switch, and what the tests ask them.

#![allow(dead_code, reason = "each test program uses a part")]

pub mod daemon;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::switch::RunningSwitch;
use daemon::{Answer, Daemon, WAIT_MAX};

pub const CHUNKS: &str = "/redfish/v1/Chassis/Pools/MemoryDomains/main/MemoryChunks";
pub const SWITCHES: &str = "/redfish/v1/Fabrics/Aquifer/Switches";
pub const ENDPOINTS: &str = "/redfish/v1/Fabrics/Aquifer/Endpoints";
pub const DEVICES: &str = "/redfish/v1/Chassis/s0/PCIeDevices";
/// Devices of the small example, by their serial numbers: an SLD, an MLD of four LDs, one with dynamic capacity.
pub const SLD: &str = "s0.4d3";
pub const MLD: &str = "s0.4d4";
pub const DCD: &str = "s0.4d5";

/// Returns an empty directory that belongs to one test.
pub fn directory(name: &str) -> PathBuf {
    let directory = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("cxl-{name}-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&directory);
    std::fs::create_dir_all(&directory).expect("a directory");
    directory
}

/// Returns a configuration's section for a switch whose hosts are at the ports from `first_port` on.
pub fn section(address: &str, first_port: u32, hosts: std::ops::Range<u32>) -> String {
    let ports =
        hosts.clone().map(|host| format!("h{host:03} = [{}]", first_port + host)).collect::<Vec<_>>().join(", ");
    format!(
        "[[switches]]\nname = \"s0\"\naddress = \"{address}\"\nanswer-ms = 500\nbackground-seconds = 2\n\
         hosts = {{ {ports} }}\n"
    )
}

/// A daemon, its administrator's token, and its switch.
pub struct Site {
    pub daemon: Daemon,
    pub token: String,
    pub switch: RunningSwitch,
}

impl Site {
    pub fn ask(&self, method: &str, path: &str, body: &Value) -> Answer {
        let text = if body.is_null() { String::new() } else { body.to_string() };
        self.daemon.ask(method, path, &self.token, &text)
    }

    pub fn get(&self, path: &str) -> Value {
        let answer = self.ask("GET", path, &Value::Null);
        assert_eq!(answer.status, 200, "{path}: {answer:?}");
        answer.body
    }

    /// Waits until something holds.
    pub fn wait(&self, what: &str, mut holds: impl FnMut(&Site) -> bool) {
        let begun = Instant::now();
        while !holds(self) {
            assert!(begun.elapsed() < WAIT_MAX, "{what}: {}", self.get("/redfish/v1/Oem/Aquifer"));
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    pub fn wait_for_devices(&self, count: u64) {
        self.wait("the devices are discovered", |site| {
            let filter = format!("{ENDPOINTS}?$filter=Oem/Aquifer/Kind%20eq%20'Device'");
            site.get(&filter)["Members@odata.count"].as_u64() == Some(count)
        });
    }

    pub fn apply(&self, declaration: &Value) {
        let path = "/redfish/v1/Oem/Aquifer/Actions/Aquifer.Apply";
        let applied = self.ask("POST", path, &json!({ "Declaration": declaration }));
        assert_eq!(applied.status, 200, "{applied:?}");
    }

    pub fn settle(&self) {
        self.daemon.settle(&self.token);
    }

    pub fn bound(&self) -> u64 {
        self.get(&format!("{SWITCHES}/s0"))["CXL"]["NumberOfBoundvPPBs"].as_u64().expect("a number")
    }

    /// Returns the LD of a device, as its endpoint reports it: what it is bound to, and what it holds.
    pub fn ld(&self, device: &str, ld_id: &str) -> Value {
        self.get(&format!("{ENDPOINTS}/Device.{device}"))["Oem"]["Aquifer"]["Lds"][ld_id].clone()
    }

    /// Returns the state of a volume of the pool `main`.
    pub fn state_of(&self, volume: &str) -> Value {
        self.get(&format!("{}/{volume}", CHUNKS))["Status"]["State"].clone()
    }

    pub fn finish(self) {
        let directory = self.daemon.directory.clone();
        drop(self);
        std::fs::remove_dir_all(directory).expect("removed");
    }
}

/// Starts a switch and a manager for it. Hosts are at the ports from `first_port` on.
pub fn site(name: &str, example: &str, first_port: u32, count: u32, is_tcp: bool) -> Site {
    let directory = directory(name);
    let switch = RunningSwitch::start(&directory, &["--example", example]);
    let address = if is_tcp { switch.tcp.replace("tcp:", "mctp-tcp://") } else { switch.unix() };
    let daemon = Daemon::start(&directory, count, &section(&address, first_port, 0..count));
    let token = daemon.login();
    Site { daemon, token, switch }
}

pub fn small(name: &str) -> Site {
    let site = site(name, "small", 6, 2, false);
    site.wait_for_devices(3);
    site
}

pub fn volume(size: &str, class: &str, host: &str) -> Value {
    json!({ "spec": { "size": size, "pool": "main", "zone": "lab", "class": class }, "host": host })
}

/// Returns a declaration of one pool.
pub fn declaration(donors: &[&str], devices: &[&str], volumes: Value) -> Value {
    json!({
        "pools": { "main": { "donors": donors, "devices": devices } },
        "zones": { "lab": { "quota": "16TiB", "hosts": ["h000", "h001"] } },
        "volumes": volumes,
    })
}

// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! A whole pool: a daemon with three donors in processes, a host, and a declared volume.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;

use aquifer_fabric::Bytes;
use serde_json::{Value, json};

use super::{DonorProcess, HostEnd, SLABS, wait_until, wait_until_registered};
use crate::daemon::{self, APPLY, CONNECTIONS, Daemon, apply_body, bind_body};

/// Declares a pool of these donors, and a volume with two copies.
pub fn declaration(donors: &[&str]) -> Value {
    json!({
        "pools": { "main": { "donors": donors } },
        "zones": { "lab": { "quota": "1GiB", "hosts": ["h1"] } },
        "volumes": { "db": { "spec": { "size": "16MiB", "pool": "main", "zone": "lab", "class": "tcp",
                                       "redundancy": { "mirror": { "copies": 2 } } } } },
    })
}

/// A pool: a daemon's directory and address, its donors, its host.
pub struct Pool {
    pub directory: PathBuf,
    pub control: SocketAddr,
    pub donors: BTreeMap<String, DonorProcess>,
    pub host: HostEnd,
    pub token: String,
}

pub const DONORS: [&str; 3] = ["d1", "d2", "d3"];
pub const ENDS: [&str; 4] = ["Donor.d1", "Donor.d2", "Donor.d3", "Host.h1"];

impl Pool {
    /// Starts all, and declares a volume.
    pub fn start(name: &str) -> (Pool, Daemon) {
        let directory = daemon::directory(name);
        let first: SocketAddr = format!("{}:0", daemon::address()).parse().expect("an address");
        let daemon = Daemon::start_registered(&directory, first, None);
        let control = daemon.control.expect("it says where");
        let token = daemon.login("admin", &daemon.password());
        let donors = DONORS.map(|id| (id.to_owned(), DonorProcess::start(&directory, id, &[control])));
        let host = HostEnd::start("h1", &[control]);
        wait_until_registered(&daemon, &token, &ENDS);
        let pool = Pool { directory, control, donors: donors.into(), host, token };
        pool.apply(&daemon, &declaration(&DONORS));
        (pool, daemon)
    }

    pub fn apply(&self, daemon: &Daemon, declaration: &Value) {
        let applied = daemon.ask("POST", APPLY, &self.token, &apply_body(declaration)).expect("an answer");
        assert_eq!(applied.status, 200, "{applied:?}");
    }

    pub fn restart(&self, kill_at_effect: Option<u64>) -> Daemon {
        Daemon::start_registered(&self.directory, self.control, kill_at_effect)
    }

    /// Binds the volume. Returns `None` if the daemon was killed.
    pub fn bind(&self, daemon: &Daemon) -> Option<()> {
        let answer = daemon.ask("POST", CONNECTIONS, &self.token, &bind_body("db", "h1"))?;
        assert!((200..300).contains(&answer.status), "{answer:?}");
        Some(())
    }

    /// Unbinds the volume if it is bound.
    pub fn unbind(&self, daemon: &Daemon) {
        let bindings = daemon.ask("GET", CONNECTIONS, &self.token, "").expect("an answer").body;
        for binding in bindings["Members"].as_array().expect("a list") {
            let path = binding["@odata.id"].as_str().expect("a path");
            let answer = daemon.ask("DELETE", path, &self.token, "").expect("an answer");
            assert!((200..300).contains(&answer.status), "{answer:?}");
        }
        assert!(daemon.settle(&self.token));
    }

    pub fn donor(&self, daemon: &Daemon, id: &str) -> Value {
        let path = format!("/redfish/v1/Fabrics/Aquifer/Endpoints/Donor.{id}");
        daemon.ask("GET", &path, &self.token, "").expect("an answer").body["Oem"]["Aquifer"].clone()
    }

    /// Asserts that nothing is lent, and that every donor has all of its memory.
    pub fn expect_nothing_lent(&self, daemon: &Daemon) {
        assert_eq!(self.host.members(), 0);
        wait_until("every donor has everything back", || {
            DONORS.iter().all(|id| {
                let donor = self.donor(daemon, id);
                donor["Lent"] == "0B" && donor["Capacity"] == Bytes::slabs(SLABS).to_string()
            })
        });
    }
}

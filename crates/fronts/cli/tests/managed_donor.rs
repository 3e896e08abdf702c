// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! `aquifer donor --manager`: it registers as the command line says, and impossible arguments are refused.

mod support;

use std::collections::BTreeSet;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use aquifer_control::{EndId, Kind, Patterns, Registrar, RegistrarSettings, Report};
use aquifer_fabric::{Bytes, Term};
use support::{aquifer, scratch};

/// Longer than any step takes on a busy machine.
const WAIT_MAX: Duration = Duration::from_secs(60);

/// Kills its donor when it is dropped.
struct Donor(Child);

impl Drop for Donor {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_donor_registers_as_its_command_line_says() {
    let listen = ([127, 0, 0, 1], 0).into();
    let (donors, hosts) = (Patterns::default(), Patterns::default());
    let settings = RegistrarSettings { listen, tls: None, revocations: None, donors, hosts };
    let registrar = Registrar::start(settings, Vec::new(), Box::new(|_| ())).expect("it listens");
    let (manager, state) = (registrar.address().to_string(), scratch("managed-donor").join("donor.json"));
    let words = ["donor", "--size", "8MiB", "--listen", "127.0.0.1:0", "--security", "plain", "--id", "d1"];
    let labels = ["--label", "rack=r1", "--label", "zone=a", "--advertise", "far.example:7411"];
    let mut command = aquifer();
    command.args(words).args(labels).arg("--manager").arg(&manager).arg("--manager-state").arg(&state);
    let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("it starts");
    let _donor = Donor(child);
    let id = EndId::new(Kind::Donor, "d1").expect("a name");
    let deadline = Instant::now() + WAIT_MAX;
    let report = loop {
        match registrar.query(Term(3), &BTreeSet::new()).remove(&id) {
            Some(Ok(Report::Donor(report))) => break report,
            other => assert!(Instant::now() < deadline, "{other:?}"),
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    assert_eq!((report.capacity, report.term), (Bytes::slabs(4), Term(3)));
    let entry = registrar.entries().1.remove(&id).expect("it is registered");
    assert_eq!(entry.registration.addresses, ["far.example:7411"]);
    assert_eq!(entry.registration.labels.get("rack").map(String::as_str), Some("r1"));
    assert_eq!(entry.registration.rack().expect("a name").as_str(), "r1");
    let remembered = std::fs::read_to_string(state).expect("it remembers the term");
    assert!(remembered.contains("\"term\":3"), "{remembered}");
}

#[test]
fn a_donor_that_no_manager_could_use_is_refused() {
    let base = ["donor", "--size", "8MiB", "--security", "plain"];
    let managed = ["--manager", "127.0.0.1:1", "--id", "d1"];
    for (words, line) in [
        (&["--id", "d1"][..], "--manager"),
        (&["--manager", "nowhere"], "write HOST:PORT"),
        (&["--manager", "127.0.0.1:1", "--id", "D 1"], "use only a-z"),
        (&["--manager", "127.0.0.1:1", "--id", "d1", "--label", "rack"], "write NAME=VALUE"),
        (&[&managed[..], &["--label", "a=1", "--label", "a=2"]].concat(), "label a is given twice"),
        (&[&managed[..], &["--label", "class=warp"]].concat(), "write class=tcp, class=rdma or class=cxl"),
        (&[&managed[..], &["--advertise", "nowhere"]].concat(), "write HOST:PORT"),
        (&[&managed[..], &["--manager-cert", "c.pem"]].concat(), "--manager-key"),
        (&[&managed[..], &["--manager-state", "/nowhere/donor.json"]].concat(), "name a file in a directory"),
    ] {
        let output = aquifer().args(base).args(["--listen", "127.0.0.1:0"]).args(words).output().expect("it runs");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && said.contains(line), "{words:?}: {said}");
    }
    let local = ["donor", "--size", "8MiB", "--listen", "unix:/tmp/none.sock"];
    let output = aquifer().args(local).args(managed).output().expect("it runs");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains("listen on a port"), "{said}");
}

// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Separate hosts for donors and their borrower: network namespaces with an address each, and virtual cables between
//! them that a test can unplug. Needs root.

use std::process::{Command, Stdio};

/// Network namespaces: the borrower's, with one cable to each donor's.
#[derive(Debug)]
pub struct Hosts {
    donors: usize,
}

impl Hosts {
    /// Returns `None`, and reports a skip, if they cannot be created.
    #[must_use]
    pub fn new(donors: usize) -> Option<Hosts> {
        let hosts = Hosts { donors };
        let mut words = vec![format!("netns add {}", name(0))];
        for donor in 1..=donors {
            let (borrower, host) = (name(0), name(donor));
            words.push(format!("netns add {host}"));
            words.push(format!("link add to{donor} netns {borrower} type veth peer name cable netns {host}"));
            words.push(format!("-n {borrower} address add 10.77.{donor}.1/24 dev to{donor}"));
            words.push(format!("-n {host} address add {}/24 dev cable", address(donor)));
            words.push(format!("-n {borrower} link set to{donor} up"));
            words.push(format!("-n {host} link set cable up"));
        }
        for words in words {
            if let Err(why) = ip(&words) {
                aquifer_test_support::skip(format!("hosts of their own cannot be made here: ip {words}: {why}"));
                return None;
            }
        }
        Some(hosts)
    }

    /// Unplugs a cable, or plugs it in, at the donor's end or at the borrower's.
    pub fn set_cable(&self, donor: usize, is_at_donor: bool, state: &str) {
        let (host, cable) = if is_at_donor { (donor, "cable".into()) } else { (0, format!("to{donor}")) };
        ip(&format!("-n {} link set {cable} {state}", name(host))).expect("it could be set before");
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        for host in 0..=self.donors {
            let _ = ip(&format!("netns delete {}", name(host)));
        }
    }
}

/// The name of a host's namespace. The borrower is host 0.
fn name(host: usize) -> String {
    format!("aq-{}-{host}", std::process::id())
}

/// The address of a donor's host; the first donor is 1.
#[must_use]
pub fn address(donor: usize) -> String {
    format!("10.77.{donor}.2")
}

fn ip(words: &str) -> Result<(), String> {
    match Command::new("ip").args(words.split(' ')).stdin(Stdio::null()).output() {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => Err(String::from_utf8_lossy(&output.stderr).trim().to_owned()),
        Err(error) => Err(error.to_string()),
    }
}

/// The same command, run on that host.
#[must_use]
pub fn on_host(host: usize, command: Command) -> Command {
    let mut there = Command::new("ip");
    there.args(["netns", "exec", &name(host)]).arg(command.get_program()).args(command.get_args());
    for (variable, value) in command.get_envs() {
        match value {
            Some(value) => there.env(variable, value),
            None => there.env_remove(variable),
        };
    }
    there
}

// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Hosts within this machine: network namespaces with one address each, connected to the bench by a virtual cable.
//!
//! A cable can have a rate limit, enforced at both of its ends, so that several hosts together have more bandwidth than
//! one. Made with ip(8) and tc(8); needs root. A host carries the name of its bench, and its cable is removed with it:
//! `leftovers.rs` finds the hosts of a bench that was killed.

use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::failure::BenchFailure;
use crate::process::{call, find_program};
use crate::undo::{self, Undo, UndoList};

/// The directory in which ip(8) keeps named network namespaces.
pub const DIRECTORY: &str = "/run/netns";
/// Maximum number of hosts.
pub const HOSTS_MAX: u32 = 8;
/// The name of the host's end of its cable. The other end has its own name, because its namespace may contain
/// other interfaces.
const CABLE: &str = "cable";
/// As in the examples of tc-tbf(8): a packet that would have to wait longer than this is dropped.
const QUEUE_TIME: &str = "50ms";
/// Room for two of the largest packets that the kernel leaves for the device to segment. With a smaller burst it would
/// segment them earlier.
const BURST_BYTES_MIN: u64 = 128 << 10;
/// A burst is a thousandth of a second at the rate: longer than the delay of timers, and too short to matter.
const BURSTS_PER_SECOND: u64 = 1000;
/// Time limit for killed processes to disappear: the memory of a donor is freed first.
const END_MAX: Duration = Duration::from_secs(30);
const LOOK_AGAIN: Duration = Duration::from_millis(10);

/// Hosts, numbered from 1. They are removed when dropped.
pub struct Hosts {
    token: String,
    _undo: UndoList,
}

impl Hosts {
    /// Makes `count` hosts. `cable_rate` is in bytes per second, of each cable in each direction; None for no limit.
    pub fn make(token: &str, count: u32, cable_rate: Option<u64>) -> Result<Hosts, BenchFailure> {
        let mut undo = UndoList::default();
        for host in 1..=count {
            let path = path(token, host);
            undo.push(Undo::RemoveHost(path.clone()));
            for line in commands(&name_of(&path), &cable_of(token, host), host, cable_rate) {
                let words: Vec<&str> = line.split(' ').collect();
                call(words[0], &words[1..])?;
            }
        }
        Ok(Hosts { token: token.into(), _undo: undo })
    }

    /// The start of a command line that runs a command on a host.
    pub fn words(&self, host: u32) -> Vec<String> {
        let ip = find_program("ip").unwrap_or_else(|| "ip".into()).display().to_string();
        vec![ip, "netns".into(), "exec".into(), name_of(&path(&self.token, host))]
    }
}

/// The address at which the bench reaches a host. The range is reserved for measurements (RFC 2544): no machine uses
/// it.
pub fn address(host: u32) -> String {
    format!("198.18.{host}.2")
}

/// Why hosts cannot be made here; None if they can. Makes one to find out.
pub fn obstacle(token: &str, cable_rate: u64) -> Option<String> {
    if !rustix::process::geteuid().is_root() {
        return Some("hosts of their own for donors need root".into());
    }
    if let Some(tool) = ["ip", "tc"].iter().find(|tool| find_program(tool).is_none()) {
        return Some(format!("{tool} is not installed; install iproute2"));
    }
    let failure = Hosts::make(token, 1, Some(cable_rate)).err()?;
    Some(format!("hosts of their own cannot be made here, by network namespaces, veth and tbf: {failure}"))
}

fn path(token: &str, host: u32) -> PathBuf {
    Path::new(DIRECTORY).join(undo::name(token, &format!("host{host}")))
}

fn name_of(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// The bench's end of a cable. Its name is limited to 15 bytes, so the start time of the bench is not in it.
fn cable_of(token: &str, host: u32) -> String {
    format!("aqb{host}-{}", token.split('-').next().unwrap_or_default())
}

/// The commands that make a host: the namespace, then both ends of the cable in one command.
fn commands(name: &str, cable: &str, host: u32, rate: Option<u64>) -> Vec<String> {
    let mut lines = vec![
        format!("ip netns add {name}"),
        format!("ip link add {cable} type veth peer name {CABLE} netns {name}"),
        format!("ip address add 198.18.{host}.1/30 dev {cable}"),
        format!("ip -n {name} address add {}/30 dev {CABLE}", address(host)),
        format!("ip link set {cable} up"),
        format!("ip -n {name} link set {CABLE} up"),
    ];
    if let Some(rate) = rate {
        let burst = (rate / BURSTS_PER_SECOND).max(BURST_BYTES_MIN);
        // In bits: tc's unit `bps` means bytes.
        let limit = format!("root tbf rate {}bit burst {burst} latency {QUEUE_TIME}", rate.saturating_mul(8));
        lines.push(format!("tc qdisc add dev {cable} {limit}"));
        lines.push(format!("tc -n {name} qdisc add dev {CABLE} {limit}"));
    }
    lines
}

/// Removes a host: its processes, its cable, its name. A host that does not exist is not an error.
pub fn remove(path: &Path) -> Result<(), BenchFailure> {
    if !path.exists() {
        return Ok(());
    }
    let name = name_of(path);
    let begin = Instant::now();
    // A name whose namespace was never made has no processes and no cable.
    while let Ok(reported) = call("ip", &["netns", "pids", &name]) {
        let on_it: Vec<Pid> =
            reported.lines().filter_map(|pid| pid.trim().parse().ok()).filter_map(Pid::from_raw).collect();
        if on_it.is_empty() || begin.elapsed() > END_MAX {
            break;
        }
        for pid in on_it {
            let _ = kill_process(pid, Signal::KILL);
        }
        thread::sleep(LOOK_AGAIN);
    }
    let _ = call("ip", &["-n", &name, "link", "delete", CABLE]);
    call("ip", &["netns", "delete", &name]).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_kept_at_both_ends_of_a_cable() {
        let limited = |rate| -> Vec<String> {
            commands("h", "c", 3, rate).into_iter().filter(|line| line.starts_with("tc ")).collect()
        };
        assert!(limited(None).is_empty());
        let rate = "root tbf rate 2000000000bit burst 250000 latency 50ms";
        let ends = [format!("tc qdisc add dev c {rate}"), format!("tc -n h qdisc add dev cable {rate}")];
        assert_eq!(limited(Some(250_000_000)), ends);
        assert!(limited(Some(1_000_000))[0].contains("rate 8000000bit burst 131072 "));
    }

    #[test]
    fn names_are_the_benchs_and_fit() {
        let token = "2hwcf-zzzzzzz";
        assert_eq!(undo::token_in(&path(token, 8).to_string_lossy()), Some(token));
        assert!(cable_of(token, HOSTS_MAX).len() <= 15, "IFNAMSIZ, with a zero at the end");
    }

    #[test]
    fn hosts_are_there_until_they_are_dropped() {
        let token = undo::own_token();
        if let Some(reason) = obstacle(&token, 250_000_000) {
            aquifer_test_support::skip(reason);
            return;
        }
        let hosts = Hosts::make(&token, 2, None).unwrap();
        let there = |host| {
            let words = hosts.words(host);
            let words: Vec<&str> = words[1..].iter().map(String::as_str).chain(["ip", "-o", "address"]).collect();
            call("ip", &words).unwrap()
        };
        assert!(there(2).contains(&address(2)) && !there(1).contains(&address(2)));
        drop(hosts);
        for host in [1, 2] {
            assert!(!path(&token, host).exists());
            assert!(!Path::new("/sys/class/net").join(cable_of(&token, host)).exists());
        }
        assert_eq!(remove(&path(&token, 1)), Ok(()), "twice is not an error");
    }
}

// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Donors and a borrower as hosts of their own: network namespaces with an address each, joined by virtual cables that
//! are pulled and plugged in again. And as many donors as a program can have.
//!
//! A cable is not a socket that is closed: nobody is told, the kernel answers for an address that cannot be reached,
//! and connections that were there before go on when it is back. Needs root; elsewhere it is skipped.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::time::Duration;

use aquifer_e2e::build::{compile_text, scratch};
use aquifer_e2e::run::{LIMIT, Running, aquifer, eventually, has_ended, managed, run, start};
use aquifer_e2e::verifying::{PROGRAM, Verified, verified};

/// The longest stand of the program that a pulled cable may cost, with what a busy machine adds.
const STALL_MS_MOST: u64 = 2000;

/// One at a time: each takes as much of the machine as there is.
static TURN: Mutex<()> = Mutex::new(());

/// Network namespaces: the borrower's, with one cable to each donor's.
struct Hosts {
    donors: usize,
}

impl Hosts {
    /// `None`, and says so, where they cannot be made.
    fn new(donors: usize) -> Option<Hosts> {
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
                println!("skipped, because hosts of their own cannot be made here: ip {words}: {why}");
                return None;
            }
        }
        Some(hosts)
    }

    /// Pulls a cable, or plugs it in, at the donor's end or at the borrower's.
    fn set_cable(&self, donor: usize, is_at_donor: bool, state: &str) {
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

/// Of the borrower: 0.
fn name(host: usize) -> String {
    format!("aq-{}-{host}", std::process::id())
}

fn address(donor: usize) -> String {
    format!("10.77.{donor}.2")
}

fn ip(words: &str) -> Result<(), String> {
    match Command::new("ip").args(words.split(' ')).stdin(Stdio::null()).output() {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => Err(String::from_utf8_lossy(&output.stderr).trim().to_owned()),
        Err(error) => Err(error.to_string()),
    }
}

/// The same command on that host, where there is one.
fn on_host(host: Option<usize>, command: Command) -> Command {
    let Some(host) = host else { return command };
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

/// A donor that lends in plain text. It ends with the test.
struct Donor {
    child: Child,
    address: String,
}

impl Donor {
    fn start(host: Option<usize>, size: &str, listen: &str) -> Donor {
        let mut command = aquifer();
        command.args(["donor", "--json", "--security", "plain", "--size", size, "--listen", listen]);
        let mut command = on_host(host, command);
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().expect("aquifer can be started");
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().expect("piped")).read_line(&mut line).expect("it says where");
        let said: serde_json::Value =
            serde_json::from_str(&line).unwrap_or_else(|_| panic!("one object, not '{line}'"));
        Donor { child, address: said["address"].as_str().expect("an address").to_owned() }
    }

    fn is_lending(&self) -> bool {
        let mut command = aquifer();
        command.args(["donor", "status", &self.address, "--json", "--security", "plain"]);
        let status: serde_json::Value = serde_json::from_str(&run(command, LIMIT).expect(0).stdout).expect("an object");
        status["lent_bytes"].as_u64().expect("a number") > 0
    }
}

impl Drop for Donor {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The addresses, as they are written behind `donor:`.
fn together(donors: &[Donor]) -> String {
    donors.iter().map(|donor| donor.address.clone()).collect::<Vec<String>>().join("+")
}

/// The verifying program under way.
struct Game {
    running: Running,
    stop: PathBuf,
}

impl Game {
    fn start(name: &str, host: Option<usize>, tiers: &[String]) -> Option<Game> {
        let program = compile_text(name, PROGRAM)?;
        let stop = scratch(name).join("stop");
        let mut words = vec!["--dram", "16MiB"];
        words.extend(tiers.iter().flat_map(|tier| ["--tier", tier]));
        let command = managed(&words, &program, &[stop.to_str().expect("a path of ours")]);
        let game = Game { running: start(on_host(host, command)), stop };
        let is_ready = || Path::new(&game.stop).with_extension("ready").exists();
        eventually("the program has filled its memory", || is_ready() || has_ended(game.running.child.id()));
        if !is_ready() {
            panic!("it has not even begun: {:?}", game.running.wait(LIMIT));
        }
        Some(game)
    }

    fn figure(&self, name: &str) -> u64 {
        let mut command = aquifer();
        command.args(["stat", &self.running.child.id().to_string(), "--json"]);
        let stats: serde_json::Value = serde_json::from_str(&run(command, LIMIT).stdout).unwrap_or_default();
        stats[name].as_u64().unwrap_or_default()
    }

    /// Waits until every slab has its copies again.
    fn settle(&self) {
        // What is counted is published now and then.
        std::thread::sleep(Duration::from_millis(2500));
        eventually("all slabs have their copies", || self.figure("slabs_degraded") == self.figure("slabs_rebuilt"));
    }

    fn end(self) -> Verified {
        std::fs::write(&self.stop, "").expect("the scratch directory can be written");
        let ended = self.running.wait(LIMIT);
        println!("{}{}", ended.stdout, ended.stderr);
        verified(&ended)
    }
}

#[test]
fn a_pulled_cable_is_not_noticed_with_a_mirror() {
    let _turn = TURN.lock();
    const DONORS: usize = 3;
    let Some(hosts) = Hosts::new(DONORS) else { return };
    let start = |donor| Donor::start(Some(donor), "128MiB", &format!("{}:7411", address(donor)));
    let donors: Vec<Donor> = (1..=DONORS).map(start).collect();
    let tier = format!("donor:{},security=plain,mirror=2,size=96MiB", together(&donors));
    let Some(game) = Game::start("hosts", Some(0), &[tier]) else { return };
    for (donor, is_at_donor, away_ms) in [(1, true, 1500), (2, false, 4000), (3, true, 4000), (1, false, 300)] {
        println!("donor {donor} is cut off for {away_ms} ms, at its own end: {is_at_donor}");
        hosts.set_cable(donor, is_at_donor, "down");
        std::thread::sleep(Duration::from_millis(away_ms));
        hosts.set_cable(donor, is_at_donor, "up");
        game.settle();
    }
    let rebuilt = game.figure("slabs_rebuilt");
    let Verified { wrong, lost, longest_ms } = game.end();
    assert_eq!((wrong, lost), (0, 0));
    assert!(rebuilt > 0, "slabs got new copies");
    assert!(longest_ms <= STALL_MS_MOST, "the program stood still for {longest_ms} ms");
}

/// An array has 63 members at most, so it is a chain of two.
#[test]
fn a_program_has_its_memory_with_64_donors_and_some_are_lost() {
    let _turn = TURN.lock();
    let mut donors: Vec<Donor> = (0..64).map(|_| Donor::start(None, "2MiB", "127.0.0.1:0")).collect();
    let (first, second) = donors.split_at(32);
    // Each has room for one slab. The first level takes a part of the memory alone; on both, some donors are left over.
    let tiers = [
        format!("donor:{},security=plain,mirror=2,size=24MiB", together(first)),
        format!("donor:{},security=plain,mirror=2", together(second)),
    ];
    let Some(game) = Game::start("hosts-many", None, &tiers) else { return };
    for lost in [40, 20, 3] {
        drop(donors.remove(lost));
        game.settle();
    }
    let lending = donors.iter().filter(|donor| donor.is_lending()).count();
    println!("{lending} donors have something");
    assert!(lending > 40, "only {lending} donors have something");
    let rebuilt = game.figure("slabs_rebuilt");
    let Verified { wrong, lost, .. } = game.end();
    assert_eq!((wrong, lost), (0, 0));
    assert!(rebuilt > 0, "slabs got new copies");
}

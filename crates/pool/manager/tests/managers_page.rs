// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Types what docs/operating/managers.md shows, on this machine: its certificates, three members of etcd with its
//! settings, three managers with its file, its questions, its backup, and its restore into new members.
//!
//! Differences from the page: addresses, ports and directories. What systemd does, the test does.

mod daemon;

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use aquifer_manager::Config;
use aquifer_state_store::{Bounds, EtcdSettings, EtcdStore, EtcdTls, Key, StateStore, StoreFailure};
use aquifer_test_support::skip;
use daemon::{Daemon, WAIT_MAX, address, directory};

const PAGE: &str = include_str!("../../../../docs/operating/managers.md");

/// Returns the text of each block, with the words after its fence.
fn blocks() -> Vec<(String, String)> {
    let mut blocks = Vec::new();
    let mut lines = PAGE.lines();
    while let Some(line) = lines.next() {
        let Some(words) = line.strip_prefix("```") else { continue };
        let text: Vec<&str> = lines.by_ref().take_while(|line| *line != "```").collect();
        blocks.push((words.to_owned(), text.join("\n") + "\n"));
    }
    blocks
}

/// One machine of the page: a directory, and for each port of the page an address here.
struct Machine {
    directory: PathBuf,
    ports: Vec<(&'static str, String)>,
}

struct Site {
    directory: PathBuf,
    machines: Vec<Machine>,
    children: Vec<Child>,
}

impl Drop for Site {
    fn drop(&mut self) {
        self.end_members();
    }
}

fn free(address: &str) -> String {
    let listener = TcpListener::bind((address, 0)).expect("a free port");
    listener.local_addr().expect("an address").to_string()
}

impl Site {
    fn new() -> Site {
        let directory = directory("page");
        let machine = |number: usize| {
            let (directory, address) = (directory.join(format!("machine{number}")), address());
            for below in ["etc/aquifer", "var/lib/etcd", "var/lib/aquifer-fabricd", "srv"] {
                std::fs::create_dir_all(directory.join(below)).expect("a directory");
            }
            let ports = ["2379", "2380", "7443", "9465"].map(|port| (port, free(&address)));
            Machine { directory, ports: ports.to_vec() }
        };
        let machines = (1..=3).map(machine).collect();
        Site { directory, machines, children: Vec::new() }
    }

    /// Returns a block as it is typed on a machine of this site: the page shows it for manager1.
    fn here(&self, text: &str, machine: usize) -> String {
        let mut text = text.to_owned();
        if machine > 1 {
            // The list of all members is the same everywhere.
            let (one, own) = ("10.0.0.1:", format!("10.0.0.{machine}:"));
            let lines = text.lines().map(|line| match line.matches("10.0.0.").count() {
                1 => line.replace(one, &own).replace("--name manager1", &format!("--name manager{machine}")),
                _ => line.to_owned(),
            });
            text = lines.map(|line| line + "\n").collect();
            text = text.replace("ETCD_NAME=manager1", &format!("ETCD_NAME=manager{machine}"));
            text = text.replace("--name manager1", &format!("--name manager{machine}"));
        }
        for (number, one) in self.machines.iter().enumerate() {
            for (port, here) in &one.ports {
                text = text.replace(&format!("10.0.0.{}:{port}", number + 1), here);
            }
        }
        let root = self.machines[machine - 1].directory.display();
        text = text.replace("/srv/rack", &self.directory.join("rack").display().to_string());
        for folder in ["/etc/aquifer", "/var/lib"] {
            text = text.replace(folder, &format!("{root}{folder}"));
        }
        text
    }

    /// Types a block, and returns what it prints.
    fn run(&self, text: &str, machine: usize) -> String {
        let daemon = Path::new(env!("CARGO_BIN_EXE_aquifer-fabricd")).parent().expect("a directory");
        let path = format!("{}:{}", daemon.display(), std::env::var("PATH").unwrap_or_default());
        let script = format!("set -e\n{}", self.here(text, machine));
        let mut command = Command::new("sh");
        command.args(["-c", &script]).env("PATH", path).current_dir(&self.directory).stdin(Stdio::null());
        let output = command.output().expect("sh can be started");
        let text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{script}\n{text}");
        text
    }

    /// Starts the members with the page's settings.
    fn start_members(&mut self, settings: &str) {
        for machine in 1..=3 {
            let text = self.here(settings, machine);
            let log = std::fs::File::create(self.machines[machine - 1].directory.join("etcd.log")).expect("a log");
            let mut command = Command::new("etcd");
            command.envs(text.lines().map(|line| line.split_once('=').expect("NAME=VALUE")));
            // Twice the default times, for machines that do much else.
            command.args(["--heartbeat-interval", "200", "--election-timeout", "2000"]);
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
            self.children.push(command.spawn().expect("etcd starts"));
        }
    }

    fn end_members(&mut self) {
        for mut child in self.children.drain(..) {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Types a question until its answer has a text.
    fn wait_for(&self, block: &str, wanted: impl Fn(&str) -> bool) -> String {
        let begun = Instant::now();
        let mut last = String::new();
        while begun.elapsed() < WAIT_MAX {
            let mut command = Command::new("sh");
            command.args(["-c", &self.here(block, 1)]).stdin(Stdio::null());
            let output = command.output().expect("sh can be started");
            last = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
            if output.status.success() && wanted(&last) {
                return last;
            }
            std::thread::sleep(Duration::from_millis(200));
        }
        panic!("{block} says {last}");
    }

    fn start_managers(&self, file: &str) -> Vec<Daemon> {
        let one = |machine: usize| {
            let directory = self.machines[machine - 1].directory.join("run");
            std::fs::create_dir_all(&directory).expect("a directory");
            Daemon::launch(&directory, &self.here(file, machine), &[])
        };
        (1..=3).map(one).collect()
    }

    fn store(&self, ca: &str) -> Result<EtcdStore, StoreFailure> {
        let etc = self.machines[0].directory.join("etc/aquifer");
        let ports = self.machines.iter().map(|machine| format!("https://{}", machine.ports[0].1));
        let tls = EtcdTls { ca: etc.join(ca), identity: Some((etc.join("manager.pem"), etc.join("manager.key"))) };
        let bounds = Bounds { attempts_max: 12, ..Bounds::default() };
        EtcdStore::open(&EtcdSettings { endpoints: ports.collect(), prefix: "aquifer".into(), tls: Some(tls), bounds })
    }
}

fn has_programs() -> bool {
    for (program, argument) in [("etcd", "--version"), ("etcdctl", "version"), ("openssl", "version")] {
        if Command::new(program).arg(argument).output().is_err() {
            skip(format!("there is no {program}; install etcd-server, etcd-client and openssl"));
            return false;
        }
    }
    true
}

fn copy_certificates(site: &Site) {
    for (number, machine) in site.machines.iter().enumerate() {
        for (from, to) in [
            ("ca.pem".to_owned(), "ca.pem"),
            (format!("manager{}.pem", number + 1), "manager.pem"),
            (format!("manager{}.key", number + 1), "manager.key"),
        ] {
            std::fs::copy(site.directory.join(from), machine.directory.join("etc/aquifer").join(to)).expect("copied");
        }
    }
}

#[test]
fn the_page_can_be_typed_from_top_to_bottom() {
    if !has_programs() {
        return;
    }
    let blocks = blocks();
    let words: Vec<&str> = blocks.iter().map(|(words, _)| words.as_str()).collect();
    let [
        ("sh", certificates),
        ("ini /etc/default/etcd", settings),
        ("sh", health),
        ("toml /etc/aquifer/fabricd.toml", file),
        ("sh", check),
        ("sh", leader),
        ("sh", backup),
        ("sh restore", restore),
    ] = blocks.iter().map(|(words, text)| (words.as_str(), text.as_str())).collect::<Vec<_>>()[..]
    else {
        panic!("the page has other blocks: {words:?}")
    };
    Config::parse(file).expect("the file is a configuration as it is");

    let mut site = Site::new();
    // Certificates are for addresses; their ports do not matter. A member accepts another one only from an address of
    // its certificate, and on one machine all connections come from 127.0.0.1.
    let addresses = site.machines.iter().map(|machine| machine.ports[0].1.split(':').next().expect("an address"));
    let addresses: Vec<String> = addresses.map(str::to_owned).collect();
    let by_number = format!("$(echo {} | cut -d' ' -f$number)", addresses.join(" "));
    let certificates =
        certificates.replace("IP:10.0.0.%s", "IP:%s,IP:127.0.0.1").replace("' $number >", &format!("' {by_number} >"));
    site.run(&certificates, 1);
    copy_certificates(&site);
    site.start_members(settings);
    site.wait_for(health, |text| text.matches("is healthy").count() == 3);

    for (machine, text) in (1..=3).map(|machine| (machine, site.here(file, machine))) {
        std::fs::write(site.machines[machine - 1].directory.join("etc/aquifer/fabricd.toml"), text).expect("written");
        site.run(check, machine);
    }
    let managers = site.start_managers(file);
    let said = site.wait_for(leader, |text| text.contains("https://127."));
    let leads = managers.iter().position(|manager| said.contains(&format!("https://{}", manager.address)));
    assert!(leads.is_some(), "{said} names one of the three");
    wait_until_one_leads(&managers);

    let saved = site.run(backup, 1);
    assert!(saved.contains("napshot saved"), "{saved}");
    drop(managers);
    site.end_members();
    for machine in 1..=3 {
        std::fs::remove_dir_all(site.machines[machine - 1].directory.join("var/lib/etcd/pool")).expect("moved away");
        site.run(restore, machine);
    }
    site.start_members(settings);
    let account = Key::new("account/admin").expect("a key");
    let restored = site.store("ca.pem").expect("opened").read(&account).expect("read");
    assert!(restored.is_some(), "the account of the snapshot is there");
    let managers = site.start_managers(file);
    wait_until_one_leads(&managers);
    drop(managers);
    let untrusted = site.machines[0].directory.join("etc/aquifer/other.pem");
    std::fs::copy(site.machines[0].directory.join("etc/aquifer/manager.pem"), untrusted).expect("copied");
    let refused = site.store("other.pem").expect_err("an authority that did not sign").to_string();
    assert!(refused.contains("certificate") && refused.contains("; "), "{refused}");
    let directory = site.directory.clone();
    drop(site);
    std::fs::remove_dir_all(directory).expect("removed");
}

fn wait_until_one_leads(managers: &[Daemon]) {
    let begun = Instant::now();
    let metrics =
        |manager: &Daemon| manager.raw_at(&manager.metrics, b"GET /metrics HTTP/1.0\r\n\r\n").unwrap_or_default();
    let mut leading = 0;
    while begun.elapsed() < WAIT_MAX {
        leading = managers.iter().filter(|manager| metrics(manager).contains("aquifer_fabric_leader 1\n")).count();
        if leading == 1 {
            return;
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    panic!("{leading} managers lead");
}

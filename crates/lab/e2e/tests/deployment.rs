// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Follows the documents in docs/operating from top to bottom on separate machines: each with its own systemd, with the
//! addresses, paths and ports of the documents, and with the installed unit. Only the sizes are smaller, and `make`
//! finds everything already built. In each drill, a program runs that checks its memory.
//!
//! Needs root, systemd-nspawn and `AQUIFER_E2E_MACHINES`: see `src/machines.rs`. `operating.rs` needs only one ordinary
//! machine.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use aquifer_e2e::build::{binaries, compile_small, compile_text, scratch};
use aquifer_e2e::machines::{Machine, Switch};
use aquifer_e2e::operating_docs::{MACHINES, Snippet, SnippetKind, smaller, snippets};
use aquifer_e2e::packages::gather_programs;
use aquifer_e2e::run::{eventually, run};
use aquifer_e2e::verifying;

/// Touches 48 MiB, reads them, and ends.
const SMALL: &str = "char *memory = touch(48); for (size_t at = 0; at < 48u << 20; at += 4096) \
                     if (memory[at] != (char)(at >> 12 | 1)) return 5; return 0;";
/// How long the checking program runs if the test does not end it.
const CHECKING_SECONDS: &str = "1800";
/// Time limit of one query to a machine.
const QUESTION: Duration = Duration::from_secs(60);
/// Longer than the interval at which counters are published.
const PUBLISHED_AFTER: Duration = Duration::from_millis(2500);

/// The longest stall of the program that a drill may cause. The document says a second, but all of these machines share
/// one host, which other tests may keep busy.
const STALL_MS_MAX: u64 = 4000;

/// A section of the drills during which the program checks its memory.
struct Drill {
    section: &'static str,
    /// Whether the drill loses copies, which are then rebuilt.
    takes_copies: bool,
}

const DRILLS: [Drill; 7] = [
    Drill { section: "Kill", takes_copies: true },
    Drill { section: "Stop", takes_copies: true },
    Drill { section: "Cut", takes_copies: true },
    Drill { section: "Reclaim", takes_copies: false },
    Drill { section: "Drain", takes_copies: false },
    Drill { section: "New certificates", takes_copies: false },
    Drill { section: "Reboot", takes_copies: false },
];

/// The machines, by name. They end before the switch does, and before their shared directory is removed.
struct Site {
    machines: BTreeMap<&'static str, Machine>,
    switch: Switch,
    _target: Target,
}

/// What `make install` would build, and test programs: /root/target on all machines.
struct Target(PathBuf);

impl Target {
    fn fill() -> Option<Target> {
        let programs =
            [("small", compile_small("small", SMALL)?), ("checking", compile_text("checking", verifying::PROGRAM)?)];
        let target = scratch("deployment").canonicalize().expect("just made");
        let copy = |from: &Path, to: &str| {
            let to = target.join(to);
            std::fs::create_dir_all(to.parent().expect("a file")).expect("the scratch directory can be written");
            std::fs::copy(from, to).expect("the scratch directory can be written");
        };
        programs.iter().for_each(|(name, program)| copy(program, name));
        std::fs::create_dir_all(target.join("release")).expect("the scratch directory can be written");
        gather_programs(&target.join("release"))?;
        // If the workloads are already built here, too, `make install` saves most of its time.
        for program in std::fs::read_dir(binaries().join("../workloads")).into_iter().flatten().flatten() {
            copy(&program.path(), &format!("workloads/{}", program.file_name().to_string_lossy()));
        }
        Some(Target(target))
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

impl Site {
    /// Five machines with a clone of the repository, its build output, and programs. Returns `None`, and reports a
    /// skip, if they are not available.
    fn new() -> Option<Site> {
        let switch = Switch::new()?;
        let target = Target::fill()?;
        let repository =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..").canonicalize().expect("it was built there");
        let words = [
            format!("--bind-ro={}:/root/aquifer", repository.display()),
            format!("--bind={}:/root/target", target.0.display()),
        ];
        let plugged = MACHINES.map(|(name, address)| (name, switch.plug(name, address, &words)));
        let mut site = Site { machines: BTreeMap::from(plugged), switch, _target: target };
        for machine in site.machines.values_mut() {
            machine.wait_until_started();
        }
        site.prepare();
        Some(site)
    }

    /// Prepares what the documents assume: programs on the borrower, and the authority's ability to log in.
    fn prepare(&self) {
        let checking = format!("#!/bin/sh\nexec /root/target/checking /root/stop {CHECKING_SECONDS}\n");
        let borrower = self.on("borrower");
        std::fs::write(borrower.path("/root/checking"), checking).expect("root may");
        borrower.run("cp target/small program; chmod +x checking");
        if !self.switch.has_sshd() {
            return;
        }
        let authority = self.on("authority");
        authority.run("ssh-keygen -q -N '' -t ed25519 -f .ssh/id_ed25519");
        let key = std::fs::read(authority.path("/root/.ssh/id_ed25519.pub")).expect("just made");
        for (name, address) in MACHINES.into_iter().filter(|(name, _)| *name != "authority") {
            let machine = self.on(name);
            machine.run(
                "useradd --system --home-dir /run/sshd --no-create-home --shell /usr/sbin/nologin sshd
                 [ -e /etc/ssh/sshd_config ] || cp /usr/share/openssh/sshd_config /etc/ssh/
                 ssh-keygen -A; mkdir -p -m 700 .ssh; systemctl daemon-reload; systemctl enable --now ssh",
            );
            std::fs::write(machine.path("/root/.ssh/authorized_keys"), &key).expect("root may");
            authority.run(&format!("ssh-keyscan -T 10 {address} >> .ssh/known_hosts"));
        }
    }

    fn on(&self, name: &str) -> &Machine {
        &self.machines[name]
    }

    /// Carries out a snippet on all of its machines.
    fn follow(&self, snippet: &Snippet) {
        let Snippet { place, kind, machines, text, .. } = snippet;
        match kind {
            SnippetKind::Text => {}
            SnippetKind::Skipped(why) => aquifer_test_support::skip_part(place, format!("the document says: {why}")),
            SnippetKind::File(path) => {
                for name in machines {
                    println!("{place}: {path} on {name}");
                    let there = self.on(name).path(path);
                    std::fs::create_dir_all(there.parent().expect("a file")).expect("root may");
                    std::fs::write(there, smaller(text)).expect("root may");
                }
            }
            SnippetKind::Script { .. } if text.contains("scp ") && !self.switch.has_sshd() => {
                aquifer_test_support::skip_part(
                    place,
                    "there is no SSH server (.ci/machines DIR); the files are copied instead",
                );
                text.lines().for_each(|line| self.copy(line));
            }
            SnippetKind::Script { .. } => {
                for name in machines {
                    println!("{place}: on {name}");
                    self.on(name).run(&smaller(text));
                }
            }
        }
    }

    /// Does what `scp FILE... root@ADDRESS:PATH`, run on the authority, or `ssh root@ADDRESS COMMAND` would do.
    fn copy(&self, line: &str) {
        let words: Vec<&str> = line.split_whitespace().collect();
        let machine = |address: &str| {
            let known = MACHINES.into_iter().find(|(_, known)| address.strip_prefix("root@") == Some(known));
            self.on(known.unwrap_or_else(|| panic!("'{line}' has an address of the documents")).0)
        };
        match &words[..] {
            ["ssh", address, command @ ..] => drop(machine(address).run(&command.join(" "))),
            ["scp", files @ .., target] => {
                let (address, path) = target.split_once(':').expect("scp's notation");
                for file in files {
                    let name = if path.ends_with('/') { format!("{path}{file}") } else { path.to_owned() };
                    let from = self.on("authority").path(&format!("/root/{file}"));
                    let to = machine(address).path(&name);
                    if to.exists() {
                        // An existing file keeps its group and mode, as with scp.
                        std::fs::write(to, std::fs::read(from).expect("just made")).expect("root may");
                    } else {
                        std::fs::copy(from, to).expect("root may");
                    }
                }
            }
            _ => panic!("'{line}' is not copied"),
        }
    }

    /// A figure of the program that checks its memory.
    fn figure(&self, name: &str) -> u64 {
        let ended = self.on("borrower").attempt("aquifer stat $(pgrep -o -x checking) --json", QUESTION);
        let stats: serde_json::Value = serde_json::from_str(&ended.stdout)
            .unwrap_or_else(|_| panic!("the program has no numbers: {}{}", ended.stdout, ended.stderr));
        stats[name].as_u64().unwrap_or_else(|| panic!("'{name}' is a number"))
    }

    /// Waits until the unit has started.
    fn lends(&self, name: &str) {
        eventually(&format!("the unit of {name} starts"), || {
            self.on(name).attempt("systemctl is-active aquifer-donor", QUESTION).status == Some(0)
        });
    }

    /// Waits until every slab has its copies again and every donor lends.
    fn wait_for_copies(&self) {
        ["donor", "donor2", "donor3"].iter().for_each(|name| self.lends(name));
        std::thread::sleep(PUBLISHED_AFTER);
        eventually("all slabs have their copies", || self.figure("slabs_degraded") == self.figure("slabs_rebuilt"));
    }

    /// A property of the unit, according to systemd.
    fn property(&self, name: &str, property: &str) -> String {
        let text = format!("systemctl show --value --property={property} aquifer-donor");
        self.on(name).run(&text).trim().to_owned()
    }
}

#[test]
fn the_documents_can_be_followed_from_top_to_bottom() {
    let Some(mut site) = Site::new() else { return };
    let snippets = snippets();
    let checking =
        snippets.iter().find(|snippet| snippet.text.contains("checking.log")).expect("what the drills are tried on");
    for (index, snippet) in snippets.iter().enumerate() {
        let is_first = index == 0 || snippets[index - 1].section != snippet.section;
        let is_last = snippets.get(index + 1).is_none_or(|next| next.section != snippet.section);
        let drill = DRILLS.iter().find(|drill| drill.section == snippet.section);
        if drill.is_some() && is_first {
            begin_checking(&site, checking);
        }
        if snippet.text == "systemctl reboot\n" {
            restart(&mut site, snippet);
        } else if snippet.place != checking.place {
            site.follow(snippet);
        }
        if is_last {
            if drill.is_some() {
                site.wait_for_copies();
            }
            expect(&site, &snippet.section);
        }
        if let Some(drill) = drill.filter(|_| is_last) {
            end_checking(&site, drill);
        }
    }
}

/// Checks the expected state after a section.
fn expect(site: &Site, section: &str) {
    match section {
        "3. The donors" => {
            for name in ["donor", "donor2", "donor3"] {
                let looked = site.on(name).attempt("systemd-analyze verify aquifer-donor.service", QUESTION);
                assert_eq!((looked.status, looked.stdout + &looked.stderr), (Some(0), String::new()), "of the unit");
                assert_eq!(site.property(name, "DynamicUser"), "yes");
                let process = site.property(name, "MainPID");
                let user = site.on(name).run(&format!("stat --format=%U /proc/{process}"));
                assert_ne!(user.trim(), "root", "it has a user of its own");
            }
            // A host that is not a borrower cannot even reach the port.
            let reached = site.on("authority").attempt("timeout 5 bash -c '</dev/tcp/10.0.0.2/7411'", QUESTION);
            assert_ne!(reached.status, Some(0), "the authority reaches the port");
            site.on("borrower").run("timeout 5 bash -c '</dev/tcp/10.0.0.2/7411'");
            // If the network is configured after the unit starts, the unit waits for it.
            site.on("donor3").run("systemctl stop aquifer-donor; ip address delete 10.0.0.4/24 dev eth1");
            let early = site.on("donor3").attempt("systemctl start aquifer-donor", QUESTION);
            assert_ne!(early.status, Some(0), "there is no such address");
            site.on("donor3").run("ip address add 10.0.0.4/24 dev eth1");
            site.lends("donor3");
        }
        "Kill" => {
            // The unit counts as active until systemd has noticed the end of the process.
            eventually("systemd starts the killed donor again", || site.property("donor", "NRestarts") == "1");
            site.wait_for_copies();
        }
        "Drain" => {
            let said = site.on("donor2").run("journalctl --no-pager -u aquifer-donor");
            assert!(said.contains("Deactivated successfully"), "{said}");
            assert!(!said.contains("State 'stop-sigterm' timed out"), "{said}");
        }
        "New certificates" => {
            let ask = "openssl s_client -connect 10.0.0.2:7411 -cert /etc/aquifer/borrower.pem \
                       -key /etc/aquifer/borrower.key </dev/null 2>/dev/null | openssl x509 -noout -serial";
            site.on("donor").run("journalctl --no-pager --lines=12 -u aquifer-donor");
            let new = site.on("authority").run("openssl x509 -noout -serial -in donor.pem");
            assert_eq!(site.on("borrower").run(ask), new, "the donor has its new certificate");
        }
        _ => {}
    }
}

/// Restarts a machine, and waits until it has started.
fn restart(site: &mut Site, snippet: &Snippet) {
    let name = snippet.machines.first().expect("one of the documents").as_str();
    println!("{}: on {name}", snippet.place);
    site.machines.get_mut(name).expect("of the documents").restart(&snippet.text);
}

/// Starts the program that checks its memory.
fn begin_checking(site: &Site, snippet: &Snippet) {
    site.on("borrower").run("rm -f stop stop.ready");
    site.follow(snippet);
    eventually("the program has filled its memory", || site.on("borrower").path("/root/stop.ready").exists());
}

/// Ends the program that checks its memory, and evaluates its result.
fn end_checking(site: &Site, drill: &Drill) {
    let [degraded, rebuilt, lost] = ["slabs_degraded", "slabs_rebuilt", "slabs_lost"].map(|name| site.figure(name));
    let borrower = site.on("borrower");
    borrower.run("touch stop");
    eventually("the program's end", || borrower.attempt("pgrep -x checking", QUESTION).status != Some(0));
    let said = borrower.run("cat checking.log");
    let line = said.lines().find(|line| line.starts_with("wrong ")).unwrap_or_else(|| panic!("no end: {said}"));
    println!("after '{}': {degraded} degraded, {rebuilt} rebuilt, {lost} lost; {line}", drill.section);
    assert!(line.starts_with("wrong 0 lost 0 "), "{said}");
    assert_eq!(lost, 0, "no slab is lost");
    assert!(rebuilt > 0 || !drill.takes_copies, "slabs got new copies");
    let longest: u64 = line.split(' ').nth(5).and_then(|word| word.parse().ok()).expect("it says its numbers");
    assert!(longest <= STALL_MS_MAX, "the program stood still for {longest} ms");
}

#[test]
fn the_machines_leave_nothing_behind() {
    let Some(switch) = Switch::new() else { return };
    let mut machine = switch.plug("alone", "10.0.0.1", &[]);
    machine.wait_until_started();
    assert_eq!(machine.run("hostname").trim(), "alone");
    machine.run("ip -brief address show dev eth1 | grep -q 10.0.0.1/24");
    let ended = machine.attempt("exit 7", QUESTION);
    ended.expect(7);
    let upper = machine.path("/etc/hostname");
    assert!(upper.exists());
    drop(machine);
    assert!(!upper.exists());
    let mut mounts = std::process::Command::new("findmnt");
    mounts.args(["--types", "overlay", "--noheadings", "--output", "TARGET"]);
    let mounts = run(mounts, QUESTION).stdout;
    assert!(!mounts.contains("machine-alone"), "{mounts}");
}

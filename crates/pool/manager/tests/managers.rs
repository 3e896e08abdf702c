// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Three managers with three members of etcd: one leads, the others send readers to it and refuse changes; the leader
//! is killed, or stopped and let go on; etcd's leader is killed in the middle of a bind, another member is cut off.
//! After each, one manager leads, the pool is as desired, no slab is lent twice and none is lost, and the audit log is
//! whole.

mod daemon;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use aquifer_manager::SimulatedConfig;
use aquifer_state_store::{Bounds, EtcdSettings, EtcdStore};
use aquifer_test_support::EtcdCluster;
use daemon::judge::judge;
use daemon::{
    APPLY, Answer, CHUNKS, CONNECTIONS, Daemon, SESSIONS, WAIT_MAX, apply_body, bind_body, declaration, directory, rack,
};
use serde_json::json;

const STATUS: &str = "/redfish/v1/Oem/Aquifer";
const VERIFICATION: &str = "/redfish/v1/Oem/Aquifer/Audit/Verification";
/// Long enough for a busy machine, short enough for a test.
const LEASE_SECONDS: u64 = 8;

struct Managers {
    etcd: EtcdCluster,
    daemons: Vec<Daemon>,
    directory: PathBuf,
    rack: SimulatedConfig,
    token: String,
    lease_seconds: u64,
}

impl Managers {
    /// Starts members and managers, logs in, and declares a pool.
    fn start(name: &str) -> Option<Managers> {
        Managers::start_with(name, LEASE_SECONDS)
    }

    fn start_with(name: &str, lease_seconds: u64) -> Option<Managers> {
        let directory = directory(name);
        let etcd = EtcdCluster::start(3, &directory)?;
        let rack = SimulatedConfig { directory: Some(directory.join("rack")), ..rack(None) };
        let (daemons, token) = (Vec::new(), String::new());
        let mut managers = Managers { etcd, daemons, directory, rack, token, lease_seconds };
        for number in 0..3 {
            let started = managers.launch(number);
            managers.daemons.push(started);
        }
        managers.token = managers.log_in();
        let applied = managers.change("POST", APPLY, &apply_body(&declaration()));
        assert_eq!(applied.status, 200, "{applied:?}");
        managers.settle();
        Some(managers)
    }

    /// Logs in at the leader. The first leader has written the password; on a slow machine another one may lead by now.
    fn log_in(&self) -> String {
        let begun = Instant::now();
        while begun.elapsed() < WAIT_MAX {
            let leader = &self.daemons[self.leader()];
            let files = self.daemons.iter().map(|daemon| daemon.directory.join("state/initial-password"));
            for password in files.filter_map(|file| std::fs::read_to_string(file).ok()) {
                let body = json!({ "UserName": "admin", "Password": password.trim() }).to_string();
                let answer = leader.ask("POST", SESSIONS, "", &body).filter(|answer| answer.status == 201);
                if let Some(answer) = answer {
                    return format!("x-auth-token: {}\r\n", answer.header("x-auth-token").expect("a token"));
                }
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        panic!("nobody can log in; see {}", self.directory.display());
    }

    /// Starts a manager. Each manager asks another member of etcd first.
    fn launch(&self, number: usize) -> Daemon {
        let directory = self.directory.join(format!("manager{number}"));
        std::fs::create_dir_all(&directory).expect("a directory");
        let mut endpoints = self.etcd.endpoints();
        endpoints.rotate_left(number);
        let config = format!(
            "listen = \"{}:0\"\n[state]\nkind = \"etcd\"\ndirectory = {:?}\nendpoints = {endpoints:?}\n\
             lease-seconds = {}\n[peers]\nkind = \"simulated\"\ndirectory = {:?}\ndonors = {}\n\
             hosts = {}\ndevices = {}\ndonor-capacity = \"{}\"\ndevice-capacity = \"{}\"\n\
             [rounds]\nidle-ms = 50\nbusy-ms = 5\n",
            daemon::address(),
            directory.join("state"),
            self.lease_seconds,
            self.directory.join("rack"),
            self.rack.donors,
            self.rack.hosts,
            self.rack.devices,
            self.rack.donor_capacity,
            self.rack.device_capacity,
        );
        Daemon::launch(&directory, &config, &[])
    }

    /// Waits until one manager leads. Without a token, the leader asks for one; a standby sends readers away.
    fn leader(&self) -> usize {
        self.leader_but(None)
    }

    fn leader_but(&self, stopped: Option<usize>) -> usize {
        let begun = Instant::now();
        while begun.elapsed() < WAIT_MAX {
            for number in (0..self.daemons.len()).filter(|number| Some(*number) != stopped) {
                let answer = self.daemons[number].ask("GET", STATUS, "", "");
                if answer.is_some_and(|answer| answer.status == 401) {
                    return number;
                }
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        panic!("nobody leads; see {}", self.directory.display());
    }

    /// Asks the leader, again if it has just changed.
    fn change(&self, method: &str, path: &str, body: &str) -> Answer {
        self.change_but(None, method, path, body)
    }

    fn change_but(&self, stopped: Option<usize>, method: &str, path: &str, body: &str) -> Answer {
        let begun = Instant::now();
        while begun.elapsed() < WAIT_MAX {
            let leader = &self.daemons[self.leader_but(stopped)];
            match leader.ask(method, path, &self.token, body) {
                Some(answer) if ![307, 421, 503].contains(&answer.status) => return answer,
                _ => std::thread::sleep(Duration::from_millis(50)),
            }
        }
        panic!("nobody carries {method} {path} out; see {}", self.directory.display());
    }

    fn settle(&self) {
        self.settle_but(None);
    }

    /// Waits until the leader says that everything is as desired.
    fn settle_but(&self, stopped: Option<usize>) {
        let (begun, mut last) = (Instant::now(), None);
        while begun.elapsed() < WAIT_MAX {
            let status = self.change_but(stopped, "GET", STATUS, "").body;
            // Rounds count from the beginning of a term.
            let now = (status["Term"].as_u64(), status["Rounds"].as_u64().expect("a number"));
            match last {
                Some((term, rounds)) if term == now.0 => {
                    if status["IsSettled"] == true && now.1 >= rounds + 2 {
                        return;
                    }
                }
                _ => last = Some(now),
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        panic!("it does not settle; see {}", self.directory.display());
    }

    /// Judges the pool, and the audit log.
    fn judge(&self) {
        self.judge_but(None);
    }

    fn judge_but(&self, stopped: Option<usize>) {
        let verified = self.change_but(stopped, "GET", VERIFICATION, "");
        assert_eq!(verified.body["IsIntact"], true, "{verified:?}");
        let bounds = Bounds { attempts_max: 30, ..Bounds::default() };
        let prefix = "aquifer".to_owned();
        let settings = EtcdSettings { endpoints: self.etcd.endpoints(), prefix, tls: None, bounds };
        let store = EtcdStore::open(&settings).expect("opened");
        judge(&store, &self.rack, &self.directory.join("rack"));
    }

    fn host_of(&self, volume: &str) -> Option<String> {
        self.host_of_but(None, volume)
    }

    fn host_of_but(&self, stopped: Option<usize>, volume: &str) -> Option<String> {
        let found = self.change_but(stopped, "GET", &format!("{CHUNKS}/{volume}"), "");
        found.body["Oem"]["Aquifer"]["Host"].as_str().map(str::to_owned)
    }

    /// Binds a volume. The answer to an attempt may be lost with its leader; then it is bound already.
    fn bind_but(&self, stopped: Option<usize>, volume: &str, host: &str) {
        let bound = self.change_but(stopped, "POST", CONNECTIONS, &bind_body(volume, host));
        assert!([201, 409].contains(&bound.status), "{bound:?}");
        assert_eq!(self.host_of_but(stopped, volume).as_deref(), Some(host), "{bound:?}");
    }

    /// Returns what a standby answers, while the leader that it names leads. On a slow machine another one may lead
    /// soon.
    fn ask_standby(&self, method: &str, path: &str, body: &str, status: u16) -> (Answer, String) {
        let begun = Instant::now();
        let mut last = None;
        while begun.elapsed() < WAIT_MAX {
            let leader = self.leader();
            let url = format!("http://{}", self.daemons[leader].address);
            let answer = self.daemons[(leader + 1) % 3].ask(method, path, &self.token, body);
            match answer.filter(|answer| answer.status == status) {
                Some(answer) if answer.header("location") == Some(&format!("{url}{path}")) => return (answer, url),
                other => last = other,
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        panic!("no standby answers {method} {path} with {status}: {last:?}");
    }

    fn finish(self) {
        let Managers { etcd, daemons, directory, .. } = self;
        drop((daemons, etcd));
        std::fs::remove_dir_all(directory).expect("removed");
    }
}

#[test]
fn one_manager_leads_and_another_takes_over_when_it_is_killed() {
    let Some(mut managers) = Managers::start("managers-killed") else { return };
    managers.ask_standby("GET", &format!("{CHUNKS}?$top=1"), "", 307);
    let (refused, url) = managers.ask_standby("POST", CONNECTIONS, &bind_body("cache", "h001"), 421);
    let message = refused.body["error"]["message"].as_str().unwrap_or_default();
    assert!(message.contains(&format!("this manager stands by; {url} leads; ask {url}")), "{refused:?}");
    assert_eq!(managers.host_of("cache"), None, "a standby changes nothing");
    for daemon in &managers.daemons {
        let root = daemon.ask("GET", "/redfish/v1", "", "").expect("an answer");
        assert_eq!(root.status, 200, "what needs no account is answered everywhere");
    }

    let leader = managers.leader();
    managers.daemons[leader].kill();
    // The session with the previous leader is stored, so its token is still valid.
    managers.bind_but(None, "cache", "h001");
    managers.settle();
    managers.judge();

    managers.daemons[leader] = managers.launch(leader);
    let back = managers.daemons[leader].ask("GET", "/redfish/v1", "", "").expect("an answer");
    assert_eq!(back.status, 200);
    managers.settle();
    managers.judge();
    managers.finish();
}

/// The lease lasts longer than any wait of the test.
#[test]
fn a_manager_that_a_signal_ends_gives_its_leadership_up() {
    let Some(mut managers) = Managers::start_with("managers-ended", 300) else { return };
    let leader = managers.leader();
    managers.daemons[leader].signal("-TERM");
    assert_eq!(managers.daemons[leader].exit_code(), Some(0));
    managers.bind_but(Some(leader), "cache", "h001");
    managers.settle_but(Some(leader));
    let standby = (0..3).find(|number| *number != leader && *number != managers.leader_but(Some(leader)));
    let standby = standby.expect("three managers");
    managers.daemons[standby].signal("-INT");
    assert_eq!(managers.daemons[standby].exit_code(), Some(0), "a standby ends, too");
    managers.daemons[leader] = managers.launch(leader);
    managers.settle_but(Some(standby));
    managers.judge_but(Some(standby));
    managers.finish();
}

#[test]
fn a_manager_that_was_stopped_while_it_led_changes_nothing_afterwards() {
    let Some(managers) = Managers::start("managers-stopped") else { return };
    let old = managers.leader();
    managers.daemons[old].signal("-STOP");
    let late = std::thread::scope(|scope| {
        // The kernel takes the request for it; it is read when the manager goes on.
        let asked = scope
            .spawn(|| managers.daemons[old].ask("POST", CONNECTIONS, &managers.token, &bind_body("cache", "h000")));
        managers.bind_but(Some(old), "cache", "h001");
        managers.settle_but(Some(old));
        managers.daemons[old].signal("-CONT");
        asked.join().expect("it ends")
    });
    assert!(late.as_ref().is_none_or(|late| late.status >= 300), "a deposed manager says that it is done: {late:?}");
    managers.settle();
    assert_eq!(managers.host_of("cache").as_deref(), Some("h001"));
    managers.judge();
    managers.finish();
}

#[test]
fn a_bind_is_whole_while_members_of_etcd_are_killed_and_cut_off() {
    let Some(mut managers) = Managers::start("managers-members") else { return };
    let mut is_bound = false;
    for delay_ms in [0, 3, 12] {
        let killed = managers.etcd.wait_for_leader();
        let (method, path, body) = match is_bound {
            false => ("POST", CONNECTIONS.to_owned(), bind_body("cache", "h001")),
            true => ("DELETE", format!("{CONNECTIONS}/cache"), String::new()),
        };
        let leader = managers.leader();
        let (address, token) = (&managers.daemons[leader].address, &managers.token);
        let text = daemon::request(method, &path, token, &body);
        let asked = std::thread::scope(|scope| {
            let asked = scope.spawn(|| managers.daemons[leader].raw_at(address, text.as_bytes()));
            std::thread::sleep(Duration::from_millis(delay_ms));
            managers.etcd.kill(killed);
            asked.join().expect("it ends")
        });
        println!("delay {delay_ms} ms: {:?}", asked.and_then(|text| Answer::parse(&text)).map(|answer| answer.status));
        managers.settle();
        managers.judge();
        // Whatever was answered, it was done or it was not; asked again, it is.
        if managers.host_of("cache").is_some() == is_bound {
            let again = managers.change(method, &path, &body);
            assert!((200..300).contains(&again.status), "{again:?}");
        }
        managers.settle();
        managers.judge();
        managers.etcd.begin(killed);
        is_bound = !is_bound;
    }
    // A stopped member accepts requests and answers none. This one is the first that the leader asks.
    managers.etcd.wait_for_leader();
    let stopped = managers.leader();
    managers.etcd.stop(stopped);
    let path = format!("{CONNECTIONS}/cache");
    let unbound = managers.change("DELETE", &path, "");
    // An attempt whose answer was lost may have unbound it.
    assert!([200, 404].contains(&unbound.status), "{unbound:?}");
    managers.settle();
    managers.etcd.go_on(stopped);
    assert_eq!(managers.host_of("cache"), None);
    managers.settle();
    managers.judge();
    managers.finish();
}

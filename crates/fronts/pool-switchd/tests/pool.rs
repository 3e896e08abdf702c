// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The program before a manager with simulated donors and hosts, and `aquifer fmapi` as its client: what it shows,
//! takes and gives back, what others change, and what happens when it or the manager is killed.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use aquifer_fmapi_args::FmapiArgs;
use clap::Parser;
use serde_json::{Value, json};

#[allow(dead_code, reason = "these tests use a part")]
#[path = "../../fabric-cli/tests/site/daemon.rs"]
mod daemon;

use daemon::Daemon;

const CHUNKS: &str = "/redfish/v1/Chassis/Pools/MemoryDomains/main/MemoryChunks";
const CHANGE: &str = "/redfish/v1/Oem/Aquifer/Actions/Aquifer.ChangeVolumes";
/// How long what others have changed may take to be seen.
const SEEN_MAX: Duration = Duration::from_secs(30);

/// Not a test: the program of the managers that the others start.
#[test]
fn manager_program() {
    daemon::serve_if_asked();
}

#[derive(Debug, Parser)]
struct Fmapi {
    #[command(flatten)]
    fmapi: FmapiArgs,
}

/// The program, which ends with this.
struct Front {
    child: Child,
    peer: String,
}

impl Front {
    fn start(directory: &std::path::Path) -> Front {
        let mut child = Command::new(env!("CARGO_BIN_EXE_aquifer-pool-switchd"))
            .arg("--config")
            .arg(directory.join("front.toml"))
            .args(["--listen", "127.0.0.1:0"])
            .stdout(Stdio::piped())
            .spawn()
            .expect("it starts");
        let line = BufReader::new(child.stdout.take().expect("a pipe")).lines().next();
        let line = line.expect("it says where it listens").expect("text");
        Front { child, peer: line.replace("listening on ", "tcp:") }
    }

    fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Runs `aquifer fmapi COMMAND PEER …`. Returns its JSON, or its error.
    fn fmapi(&self, line: &str) -> Result<Value, String> {
        let (command, rest) = line.split_once(' ').unwrap_or((line, ""));
        let words = ["fmapi", command, &self.peer].into_iter().chain(rest.split_whitespace());
        let args = Fmapi::try_parse_from(words.chain(["--json", "--wait", "20000"])).expect(line);
        let outcome = aquifer_fmapi_cli::run(&args.fmapi).map_err(|failure| failure.line)?;
        assert_eq!(outcome.code, 0, "{line}: {}", outcome.output);
        Ok(serde_json::from_str(&outcome.output).expect("JSON"))
    }

    fn refused(&self, line: &str) -> String {
        self.fmapi(line).expect_err(line)
    }

    /// Returns the state of a vPPB of the first host, as text.
    fn vppb(&self, vcs: usize, vppb: usize) -> Value {
        self.fmapi("vcs").expect("virtual switches")["virtual_switches"][vcs]["vppbs"][vppb].clone()
    }

    fn see(&self, what: &str, holds: impl Fn(&Front) -> bool) {
        let begun = Instant::now();
        while !holds(self) {
            assert!(begun.elapsed() < SEEN_MAX, "{what}: {:?}", self.fmapi("vcs"));
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

impl Drop for Front {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A manager of one donor, d0000, of 64 GiB, and two hosts, with its front.
struct Site {
    daemon: Daemon,
    token: String,
    directory: PathBuf,
}

impl Site {
    fn start(name: &str) -> (Site, Front) {
        let directory = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("front-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&directory);
        std::fs::create_dir_all(&directory).expect("a directory");
        let daemon = Daemon::start(&directory, 2, "");
        let token = daemon.login();
        let site = Site { daemon, token, directory };
        let account = json!({ "UserName": "fmapi", "Password": "a long password", "RoleId": "Operator" });
        assert_eq!(site.ask("POST", "/redfish/v1/AccountService/Accounts", &account).0, 201);
        std::fs::write(site.directory.join("password"), "a long password\n").expect("written");
        let declaration = json!({
            "pools": { "main": { "donors": ["d0000"] } },
            "zones": { "lab": { "quota": "64GiB", "hosts": ["h000", "h001"] } },
        });
        let apply = "/redfish/v1/Oem/Aquifer/Actions/Aquifer.Apply";
        assert_eq!(site.ask("POST", apply, &json!({ "Declaration": declaration })).0, 200);
        let config = format!(
            "url = \"http://{}\"\naccount = \"fmapi\"\npassword-file = {:?}\npool = \"main\"\nzone = \"lab\"\n\
             donors = [\"d0000\", \"d0099\"]\nhosts = [\"h000\", \"h001\", \"h099\"]\n",
            site.daemon.address,
            site.directory.join("password")
        );
        std::fs::write(site.directory.join("front.toml"), config).expect("written");
        let front = Front::start(&site.directory);
        (site, front)
    }

    fn ask(&self, method: &str, path: &str, body: &Value) -> (u16, Value) {
        let text = if body.is_null() { String::new() } else { body.to_string() };
        let answer = self.daemon.ask(method, path, &self.token, &text);
        (answer.status, answer.body)
    }

    fn volume(&self, name: &str) -> Option<Value> {
        let (status, body) = self.ask("GET", &format!("{CHUNKS}/{name}"), &Value::Null);
        (status == 200).then_some(body)
    }

    fn finish(self, front: Front) {
        let directory = self.directory.clone();
        drop((front, self));
        std::fs::remove_dir_all(directory).expect("removed");
    }
}

#[test]
fn a_donor_is_managed_as_a_device() {
    let (site, front) = Site::start("whole");
    let switch = front.fmapi("identify").expect("a switch")["switch"].clone();
    assert_eq!((&switch["physical_ports"], &switch["active_ports"]), (&json!(19), &json!([0, 1, 16, 17, 18])));
    let ports = front.fmapi("ports").expect("ports")["ports"].clone();
    let links = [0, 1, 16, 17, 18].map(|port: usize| ports[port]["link_state"].clone());
    assert_eq!(links, ["l0", "detect", "l0", "l0", "detect"], "d0099 and h099 do not exist");
    assert_eq!(ports[0]["device_type"], "type3-mld");
    // What cannot be is refused, and the manager has nothing of it.
    for line in [
        "allocate --port 1 --ld 0 --size 256MiB",
        "allocate --port 0 --ld 16 --size 256MiB",
        "allocate --port 0 --ld 0 --size 300MiB",
        "allocate --port 0 --ld 0 --size 65GiB",
        "bind --vcs 0 --vppb 0 --port 0 --ld 0",
        "unbind --vcs 0 --vppb 0",
    ] {
        let line = front.refused(line);
        assert!(line.contains("; "), "{line}");
    }
    assert!(site.volume("fm-d0000-0").is_none());
    // Memory is taken, bound, unbound, and given back.
    front.fmapi("allocate --port 0 --ld 3 --size 1GiB").expect("room");
    let volume = site.volume("fm-d0000-3").expect("it is a volume");
    assert_eq!(
        (&volume["MemoryChunkSizeMiB"], &volume["Oem"]["Aquifer"]["Spec"]["donor"]),
        (&json!(1024), &json!("d0000"))
    );
    front.fmapi("bind --vcs 1 --vppb 5 --port 0 --ld 3").expect("bound");
    assert_eq!(site.volume("fm-d0000-3").expect("it is there")["Oem"]["Aquifer"]["Host"], "h001");
    for line in [
        "allocate --port 0 --ld 3 --size 0B",
        "allocate --port 0 --ld 3 --size 2GiB",
        "bind --vcs 0 --vppb 0 --port 0 --ld 3",
        "bind --vcs 2 --vppb 0 --port 0 --ld 3",
    ] {
        front.refused(line);
    }
    assert_eq!(site.volume("fm-d0000-3").expect("it is there")["MemoryChunkSizeMiB"], 1024);
    front.fmapi("unbind --vcs 1 --vppb 5").expect("unbound");
    front.fmapi("allocate --port 0 --ld 3 --size 512MiB").expect("smaller");
    assert_eq!(site.volume("fm-d0000-3").expect("it is there")["Oem"]["Aquifer"]["Members"][0]["Size"], "512MiB");
    front.fmapi("allocate --port 0 --ld 3 --size 0B").expect("given back");
    site.daemon.settle(&site.token);
    assert!(site.volume("fm-d0000-3").is_none());
    front.fmapi("check").expect("no departures");
    // It binds the first two logical devices.
    for ld in 0..2 {
        front.fmapi(&format!("allocate --port 0 --ld {ld} --size 256MiB")).expect("room");
    }
    front.fmapi("check --change").expect("no departures");
    site.finish(front);
}

#[test]
fn a_front_that_is_killed_shows_what_the_manager_has() {
    let (site, mut front) = Site::start("killed");
    front.fmapi("allocate --port 0 --ld 0 --size 256MiB").expect("room");
    front.fmapi("bind --vcs 0 --vppb 7 --port 0 --ld 0").expect("bound");
    let bound = front.vppb(0, 7);
    front.kill();
    // Somebody else binds a volume meanwhile.
    let spec = json!({ "size": "256MiB", "pool": "main", "zone": "lab", "class": "tcp", "donor": "d0000" });
    let change =
        json!({ "Volumes": { "fm-d0000-1": { "spec": spec, "host": "h000" } }, "Match": { "fm-d0000-1": null } });
    let (status, answer) = site.ask("POST", CHANGE, &change);
    assert_eq!(status, 200, "{answer}");
    assert_eq!(site.ask("POST", CHANGE, &change).0, 412, "it is there now");
    let front = Front::start(&site.directory);
    assert_eq!(front.vppb(0, 7), bound);
    front.see("the other one is at the first free vPPB", |front| front.vppb(0, 0)["ld_id"] == 1);
    // Others unbind it while the front runs.
    assert_eq!(site.ask("POST", CHANGE, &json!({ "Volumes": { "fm-d0000-1": { "host": null } } })).0, 200);
    front.see("it is unbound", |front| front.vppb(0, 0)["ld_id"].is_null());
    site.finish(front);
}

#[test]
fn without_a_manager_nothing_is_reported_as_done() {
    let (mut site, front) = Site::start("gone");
    site.daemon.kill();
    let line = front.refused("allocate --port 0 --ld 0 --size 256MiB");
    assert!(line.contains("; "), "{line}");
    assert!(front.fmapi("ports").is_ok(), "what was last known is shown");
    site.finish(front);
}

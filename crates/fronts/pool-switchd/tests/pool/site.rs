// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! A manager with simulated donors and hosts, and fronts of it.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use aquifer_fmapi_args::FmapiArgs;
use clap::Parser;
use serde_json::{Value, json};

use crate::daemon::Daemon;

pub const CHUNKS: &str = "/redfish/v1/Chassis/Pools/MemoryDomains/main/MemoryChunks";
pub const CHANGE: &str = "/redfish/v1/Oem/Aquifer/Actions/Aquifer.ChangeVolumes";
pub const ACCOUNTS: &str = "/redfish/v1/AccountService/Accounts";
/// How long what others have changed may take to be seen on a busy machine.
pub const SEEN_MAX: Duration = Duration::from_secs(30);
/// One donor, d0000, and two hosts.
pub const PEERS: &str = "donors = 2\nhosts = 2\ndonor-capacity = \"64GiB\"\n";
/// Fronts that are started again and again log in each time.
const SESSIONS: &str = "[sessions]\nlogins-per-minute = 10000\n";
pub const PASSWORD: &str = "a long password";
const ANY_PORT: [&str; 2] = ["--listen", "127.0.0.1:0"];

#[derive(Debug, Parser)]
struct Fmapi {
    #[command(flatten)]
    fmapi: FmapiArgs,
}

/// The program, which ends with this.
pub struct Front {
    child: Child,
    pub peer: String,
    errors: PathBuf,
}

/// Returns a new directory for a test.
pub fn new_directory(name: &str) -> PathBuf {
    let directory = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("front-{name}-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&directory);
    std::fs::create_dir_all(&directory).expect("a directory");
    directory
}

/// Writes the front's configuration and the password.
pub fn write_config(directory: &Path, url: &str) {
    std::fs::write(directory.join("password"), format!("{PASSWORD}\n")).expect("written");
    let password = directory.join("password");
    let config = format!(
        "url = \"{url}\"\naccount = \"fmapi\"\npassword-file = {password:?}\npool = \"main\"\nzone = \"lab\"\n\
         donors = [\"d0000\", \"d0099\"]\nhosts = [\"h000\", \"h001\", \"h099\"]\n",
    );
    std::fs::write(directory.join("front.toml"), config).expect("written");
}

fn program(directory: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_aquifer-pool-switchd"));
    command.arg("--config").arg(directory.join("front.toml"));
    command
}

/// Runs a front that cannot start with its configuration. Returns its error and how long that took.
pub fn refused_start(directory: &Path) -> (String, Duration) {
    let begun = Instant::now();
    let (text, code) = failed_start(directory, &ANY_PORT);
    assert_eq!(code, Some(2), "the unit must not restart it: {text}");
    (text, begun.elapsed())
}

/// Runs a front that ends by itself. Returns its error and its exit code.
pub fn failed_start(directory: &Path, arguments: &[&str]) -> (String, Option<i32>) {
    let mut command = program(directory);
    let output = command.args(arguments).output().expect("it starts");
    let text = String::from_utf8(output.stderr).expect("text");
    assert!(text.starts_with("aquifer-pool-switchd: ") && text.contains("; "), "{text}");
    (text, output.status.code())
}

impl Front {
    pub fn start(directory: &Path) -> Front {
        Front::with_errors(directory, |file| std::fs::File::create(file).expect("a file"))
    }

    /// Works like the function above, with another standard error than a file.
    pub fn with_errors(directory: &Path, open: impl FnOnce(&Path) -> std::fs::File) -> Front {
        static NUMBER: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let errors = directory.join(format!("errors-{number}"));
        let mut command = program(directory);
        command.args(ANY_PORT).stdout(Stdio::piped()).stderr(open(&errors));
        let mut child = command.spawn().expect("it starts");
        let line = BufReader::new(child.stdout.take().expect("a pipe")).lines().next();
        let line = line.unwrap_or_else(|| panic!("it ends: {:?}", std::fs::read_to_string(&errors)));
        Front { child, peer: line.expect("text").replace("listening on ", "tcp:"), errors }
    }

    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Returns the lines that it has written to standard error.
    pub fn said(&self) -> Vec<String> {
        std::fs::read_to_string(&self.errors).expect("a file").lines().map(str::to_owned).collect()
    }

    /// Returns another client of it, for other threads.
    pub fn client(&self) -> Client {
        Client(self.peer.clone())
    }

    /// Runs `aquifer fmapi COMMAND PEER …`. Returns its JSON, or its error.
    pub fn fmapi(&self, line: &str) -> Result<Value, String> {
        self.client().fmapi(line)
    }

    pub fn refused(&self, line: &str) -> String {
        self.fmapi(line).expect_err(line)
    }

    /// Returns the state of a vPPB.
    pub fn vppb(&self, vcs: usize, vppb: usize) -> Value {
        self.fmapi("vcs").expect("virtual switches")["virtual_switches"][vcs]["vppbs"][vppb].clone()
    }

    /// Returns the sizes of the logical devices of the first donor, in units of 256 MiB.
    pub fn units(&self) -> Vec<u64> {
        let lds = self.fmapi("lds --port 0").expect("logical devices");
        let list = lds["allocations"].as_array().unwrap_or_else(|| panic!("{lds}"));
        list.iter().map(|ld| ld["bytes"].as_u64().unwrap_or_else(|| panic!("{lds}")) >> 28).collect()
    }

    pub fn see(&self, what: &str, holds: impl Fn(&Front) -> bool) {
        let begun = Instant::now();
        while !holds(self) {
            assert!(begun.elapsed() < SEEN_MAX, "{what}: {:?}; it said {:?}", self.fmapi("vcs"), self.said());
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

impl Drop for Front {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A client of a front, by its address.
#[derive(Clone)]
pub struct Client(pub String);

impl Client {
    /// Runs `aquifer fmapi COMMAND PEER …`. Returns its JSON, or its error.
    pub fn fmapi(&self, line: &str) -> Result<Value, String> {
        // The machine of a test may be busy.
        self.fmapi_as_is(&format!("{line} --wait 20000"))
    }

    /// Works like the function above, and waits for answers as long as the command does by itself.
    pub fn fmapi_as_is(&self, line: &str) -> Result<Value, String> {
        let (command, rest) = line.split_once(' ').unwrap_or((line, ""));
        let words = ["fmapi", command, &self.0].into_iter().chain(rest.split_whitespace());
        let args = Fmapi::try_parse_from(words.chain(["--json"])).expect(line);
        let outcome = aquifer_fmapi_cli::run(&args.fmapi).map_err(|failure| failure.line)?;
        assert_eq!(outcome.code, 0, "{line}: {}", outcome.output);
        Ok(serde_json::from_str(&outcome.output).expect("JSON"))
    }
}

/// A manager of one donor, d0000, of 64 GiB, and two hosts.
pub struct Site {
    pub daemon: Daemon,
    pub token: String,
    pub directory: PathBuf,
}

impl Site {
    /// Starts a manager, and a front of it.
    pub fn start(name: &str) -> (Site, Front) {
        let site = Site::without_front(name);
        let front = Front::start(&site.directory);
        (site, front)
    }

    /// Starts a manager, with an account for fronts, and writes their configuration.
    pub fn without_front(name: &str) -> Site {
        let directory = new_directory(name);
        let daemon = Daemon::start_at(&directory, "127.0.0.1:0", PEERS, SESSIONS).expect("it listens");
        let token = daemon.login();
        let site = Site { daemon, token, directory };
        let account = json!({ "UserName": "fmapi", "Password": PASSWORD, "RoleId": "Operator" });
        assert_eq!(site.ask("POST", ACCOUNTS, &account).0, 201);
        let declaration = json!({
            "pools": { "main": { "donors": ["d0000"] } },
            "zones": { "lab": { "quota": "64GiB", "hosts": ["h000", "h001"] } },
        });
        let apply = "/redfish/v1/Oem/Aquifer/Actions/Aquifer.Apply";
        assert_eq!(site.ask("POST", apply, &json!({ "Declaration": declaration })).0, 200);
        write_config(&site.directory, &format!("http://{}", site.daemon.address));
        site
    }

    /// Starts the manager again at the same address, on what is stored. Returns false if it ended before it listened.
    pub fn restart_manager(&mut self, more_of_peers: &str) -> bool {
        self.daemon.kill();
        let address = self.daemon.address.clone();
        let peers = format!("{PEERS}{more_of_peers}");
        let started = Daemon::start_at(&self.directory, &address, &peers, SESSIONS);
        let is_started = started.is_some();
        if let Some(daemon) = started {
            self.daemon = daemon;
        }
        is_started
    }

    pub fn ask(&self, method: &str, path: &str, body: &Value) -> (u16, Value) {
        let text = if body.is_null() { String::new() } else { body.to_string() };
        let answer = self.daemon.ask(method, path, &self.token, &text);
        (answer.status, answer.body)
    }

    pub fn volume(&self, name: &str) -> Option<Value> {
        let (status, body) = self.ask("GET", &format!("{CHUNKS}/{name}"), &Value::Null);
        (status == 200).then_some(body)
    }

    /// Returns the size in units of 256 MiB and the host of the volume of a logical device of the donor.
    pub fn ld(&self, ld: u8) -> Option<(u64, Option<String>)> {
        let volume = self.volume(&format!("fm-d0000-{ld}"))?;
        let units = volume["MemoryChunkSizeMiB"].as_u64().expect("a size") / 256;
        Some((units, volume["Oem"]["Aquifer"]["Host"].as_str().map(str::to_owned)))
    }

    /// Replaces words of the front's configuration.
    pub fn configure(&self, from: &str, to: &str) {
        let file = self.directory.join("front.toml");
        let text = std::fs::read_to_string(&file).expect("text");
        assert!(text.contains(from), "{from}");
        std::fs::write(file, text.replace(from, to)).expect("written");
    }

    pub fn finish(self, front: Front) {
        let directory = self.directory.clone();
        drop((front, self));
        std::fs::remove_dir_all(directory).expect("removed");
    }
}

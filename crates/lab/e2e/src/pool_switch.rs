// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The program that shows a pool as a CXL switch, before a pool of real processes, and `aquifer fmapi` as its client.

use std::process::{Child, Command};

use serde_json::{Value, json};

use crate::build::binaries;
use crate::pool::{Pool, end, started};
use crate::run::{LIMIT, aquifer, eventually, run};

/// The account of the program, and its password.
const ACCOUNT: (&str, &str) = ("fmapi", "a long password");

/// A running `aquifer-pool-switchd`. Donor d1 is at port 0, and the pool's first host is virtual switch 0.
#[derive(Debug)]
pub struct PoolSwitch {
    child: Option<Child>,
    peer: String,
}

impl PoolSwitch {
    /// Makes an account at the pool's manager and starts the program with it. A bind or an unbind waits for its host
    /// for `settle_seconds`.
    #[must_use]
    pub fn start(pool: &Pool, settle_seconds: u64) -> PoolSwitch {
        let (name, password) = ACCOUNT;
        let account = json!({ "UserName": name, "Password": password, "RoleId": "Operator" });
        pool.rest("POST", "/redfish/v1/AccountService/Accounts", &account);
        let file = |name: &str| pool.directory().join(name);
        std::fs::write(file("fmapi-password"), format!("{password}\n")).expect("the scratch directory can be written");
        let donors: Vec<String> = (1..=pool.donors.len()).map(|number| format!("d{number}")).collect();
        let config = format!(
            "url = {:?}\naccount = {name:?}\npassword-file = {:?}\npool = \"main\"\nzone = \"lab\"\ndonors = {donors:?}\n\
             hosts = {:?}\nsettle-seconds = {settle_seconds}\n",
            pool.url(),
            file("fmapi-password"),
            pool.hosts()
        );
        std::fs::write(file("pool-switch.toml"), config).expect("the scratch directory can be written");
        let mut command = Command::new(binaries().join("aquifer-pool-switchd"));
        command.arg("--config").arg(file("pool-switch.toml")).args(["--listen", "127.0.0.1:0"]);
        let mut lines = Vec::new();
        let child = started(command, 1, &mut lines);
        PoolSwitch { child: Some(child), peer: lines[0].replace("listening on ", "tcp:") }
    }

    /// Runs `aquifer fmapi COMMAND PEER WORDS`. Returns its JSON object, or the line that says why it failed.
    pub fn fmapi(&self, line: &str) -> Result<Value, String> {
        let (command, words) = line.split_once(' ').unwrap_or((line, ""));
        let mut fmapi = aquifer();
        fmapi.args(["fmapi", command, &self.peer]).args(words.split_whitespace()).arg("--json");
        let ended = run(fmapi, LIMIT);
        match ended.status {
            Some(0) => Ok(serde_json::from_str(&ended.stdout).expect("one object")),
            Some(1) => Err(ended.stderr.trim().to_owned()),
            _ => panic!("aquifer fmapi {line}: {ended:?}"),
        }
    }

    /// Runs a command that succeeds.
    #[track_caller]
    pub fn done(&self, line: &str) -> Value {
        self.fmapi(line).unwrap_or_else(|why| panic!("{line}: {why}"))
    }

    /// Runs a command that is refused with this return code. Returns the whole line, which has a remedy.
    #[track_caller]
    pub fn refused(&self, line: &str, code: &str) -> String {
        let why = self.fmapi(line).expect_err(line);
        assert!(why.contains(code) && why.contains("; "), "{line}: '{why}', and not {code}");
        why
    }

    /// A vPPB of a virtual switch.
    #[must_use]
    pub fn vppb(&self, vcs: usize, vppb: usize) -> Value {
        self.done("vcs")["virtual_switches"][vcs]["vppbs"][vppb].clone()
    }

    /// The state of the link of a port.
    #[must_use]
    pub fn link(&self, port: usize) -> Value {
        self.done("ports")["ports"][port]["link_state"].clone()
    }

    /// Waits until an event record has all of these members.
    pub fn wait_for_event(&self, what: &str, members: &Value) {
        let wanted = members.as_object().expect("an object");
        let is_it = |record: &Value| wanted.iter().all(|(name, value)| record[name] == *value);
        eventually(what, || records(&self.done("events")).iter().any(is_it));
    }
}

/// Every record of every log, however deep it is.
fn records(value: &Value) -> Vec<Value> {
    match value {
        Value::Object(members) if members.contains_key("type") && members.contains_key("kind") => vec![value.clone()],
        Value::Object(members) => members.values().flat_map(records).collect(),
        Value::Array(values) => values.iter().flat_map(records).collect(),
        _ => Vec::new(),
    }
}

impl Drop for PoolSwitch {
    fn drop(&mut self) {
        end(self.child.take());
    }
}

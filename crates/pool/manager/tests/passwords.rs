// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! How much memory the passwords of many accounts can take.

mod daemon;

use daemon::{Answer, Daemon, address, directory};
use serde_json::json;

const ACCOUNTS: &str = "/redfish/v1/AccountService/Accounts";

/// Only the hashes of logins were limited: a new password was hashed by each thread that answers requests, in 19 MiB.
#[test]
fn new_passwords_are_hashed_within_the_limit_of_logins() {
    /// As many as threads that answer requests.
    const AT_ONCE: usize = 32;
    let directory = directory("hashes");
    let (state, listen) = (directory.join("state"), address());
    let config = format!("state = {state:?}\nlisten = \"{listen}:0\"\n[peers]\nkind = \"simulated\"\n");
    let daemon = Daemon::launch(&directory, &config, &[]);
    let token = daemon.login("admin", &daemon.password());
    let names: Vec<String> = (0..AT_ONCE).map(|number| format!("rita{number}")).collect();
    for name in &names {
        let body = json!({ "UserName": name, "Password": "correct horse", "RoleId": "ReadOnly" }).to_string();
        assert_eq!(daemon.ask("POST", ACCOUNTS, &token, &body).expect("an answer").status, 201);
    }
    let before = daemon.peak_memory();
    let body = json!({ "Password": "another horse" }).to_string();
    let change = |name: &str| daemon.ask("PATCH", &format!("{ACCOUNTS}/{name}"), &token, &body).expect("an answer");
    let answers: Vec<Answer> = std::thread::scope(|scope| {
        let sent: Vec<_> = names.iter().map(|name| scope.spawn(move || change(name))).collect();
        sent.into_iter().map(|one| one.join().expect("an answer")).collect()
    });
    let (done, refused): (Vec<Answer>, Vec<Answer>) = answers.into_iter().partition(|answer| answer.status == 200);
    assert!(!done.is_empty(), "{refused:?}");
    for answer in refused {
        assert_eq!((answer.status, answer.header("retry-after")), (503, Some("1")), "{answer:?}");
    }
    let grown = daemon.peak_memory() - before;
    assert!(grown < 128 << 20, "{} MiB", grown >> 20);
    drop(daemon);
    std::fs::remove_dir_all(directory).expect("removed");
}

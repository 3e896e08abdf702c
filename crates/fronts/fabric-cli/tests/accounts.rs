// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Accounts against a real daemon: added, changed and removed; and what a dry run of each says.

mod program;

use program::{Rack, one_line, session_file, stderr, stdout};

#[test]
fn accounts_are_added_changed_and_removed() {
    let rack = Rack::start("accounts", "");
    rack.log_in();
    let added = rack.fed(&["accounts", "add", "rita", "--role", "read-only", "--password-stdin"], "a long password\n");
    assert!(stdout(&added).contains("rita     ReadOnly  true"), "{added:?}");
    assert!(rack.done(&["accounts", "change", "rita", "--role", "operator"]).contains("Operator"));
    let changed = rack.fed(&["accounts", "change", "admin", "--password-stdin"], "another long password");
    assert_eq!(changed.status.code(), Some(0), "{changed:?}");
    assert!(!rack.directory.join("state/initial-password").exists());
    assert!(rack.fails(1, &["accounts"]).contains("run 'aquifer fabric login ACCOUNT'"), "its sessions have ended");
    let login = |account: &str, password: &str| {
        let output = rack.command(&["login", account]).env("AQUIFER_FABRIC_PASSWORD", password).output();
        output.expect("it starts").status.code()
    };
    assert_eq!(login("rita", "a long password"), Some(0));
    assert!(rack.fails(1, &["accounts"]).contains("role Operator; use an account with role Administrator"));
    assert_eq!(login("admin", "another long password"), Some(0));
    rack.done(&["accounts", "remove", "rita"]);
    assert_eq!(login("rita", "a long password"), Some(1));
    assert!(session_file(&rack.directory).is_file());
}

#[test]
fn a_dry_run_of_an_account_checks_everything_and_changes_nothing() {
    let rack = Rack::start("accounts-dry", "");
    rack.log_in();
    let fed = |words: &[&str], password: &str| rack.fed(words, password);
    let planned = |words: &[&str], password: &str| {
        let output = fed(words, password);
        assert_eq!((output.status.code(), stderr(&output).as_str()), (Some(0), ""), "{words:?}");
        stdout(&output)
    };
    let add = ["accounts", "add", "rita", "--role", "read-only", "--password-stdin"];
    let dry = [&add[..], &["--dry-run"]].concat();
    let before = (rack.json(&["accounts"]), rack.json(&["audit"]));
    assert_eq!(planned(&dry, "a long password"), "+ create account rita with role ReadOnly\n");
    assert!(one_line(1, &fed(&dry, "short")).contains("the password does not have 12 to 256 bytes; "));
    let admin = ["accounts", "add", "admin", "--role", "read-only", "--password-stdin", "--dry-run"];
    assert!(one_line(1, &fed(&admin, "a long password")).contains("the name is taken; "));
    let change = ["accounts", "change", "admin", "--password-stdin", "--dry-run"];
    assert_eq!(planned(&change, "another long password"), "~ change account admin: password\n- logout of admin\n");
    assert!(one_line(1, &fed(&change, "short")).contains("the password does not have"));
    for words in [
        &["change", "admin", "--role", "operator"][..],
        &["change", "admin", "--enabled", "false"],
        &["remove", "admin"],
    ] {
        let line = rack.fails(1, &[&["accounts"][..], words, &["--dry-run"]].concat());
        assert!(line.contains("the last administrator"), "{line}");
    }
    assert!(rack.fails(1, &["accounts", "remove", "rita", "--dry-run"]).contains("there is no account rita; "));
    assert_eq!((rack.json(&["accounts"]), rack.json(&["audit"])), before);
    assert!(rack.directory.join("state/initial-password").exists());
    // What was planned is what is done.
    planned(&add, "a long password");
    assert_eq!(planned(&["accounts", "remove", "rita", "--dry-run"], ""), "- delete account rita\n");
    assert!(rack.done(&["accounts"]).contains("rita"));
    let json = rack.json(&["accounts", "remove", "rita", "--dry-run"]);
    assert_eq!(json["Changes"], serde_json::json!(["- delete account rita"]));
    let audit = rack.done(&["audit"]);
    assert!(audit.contains("create account rita with role ReadOnly") && !audit.contains("delete account"), "{audit}");
}

// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! `aquifer agent --check` reads the certificates that the configuration names.
//!
//! The trouble it guards against: the check called a configuration valid although the file of `ca` was missing, and the
//! agent that was then started ended at once, again and again.

#[path = "../../../remote/donor/tests/certificates/mod.rs"]
mod certificates;

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::Command;

use aquifer_donor::Files;

use certificates::{Authority, write};

/// A directory of this test's own, with the configuration and the state of an agent.
struct Place(PathBuf);

impl Place {
    fn new(name: &str) -> Place {
        let directory = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}", std::process::id()));
        fs::create_dir_all(directory.join("state")).expect("a directory");
        Place(directory)
    }

    /// Checks a configuration with these files. Returns the exit status and what standard error has.
    fn check(&self, Files { cert, key, ca }: &Files, more: &str) -> (Option<i32>, String) {
        let (config, state) = (self.0.join("agent.toml"), self.0.join("state"));
        let text = format!(
            "host = 'web-1'\nstate = {state:?}\n[manager]\naddresses = ['127.0.0.1:7444']\n\
             [tenant]\ncert = {cert:?}\nkey = {key:?}\nca = {ca:?}\n{more}"
        );
        fs::write(&config, text).expect("a file");
        let mut command = Command::new(env!("CARGO_BIN_EXE_aquifer-agentd"));
        let output = command.arg("--config").arg(config).arg("--check").output().expect("it runs");
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn a_file_that_is_missing_or_does_not_fit_fails_the_check_with_cause_and_remedy() {
    let (place, authority) = (Place::new("check"), Authority::new());
    let sign = |serial| authority.sign_numbered("web-1", serial, &authority);
    let (good, other) = (sign(1), sign(2));
    // Before the first manager answers, there is no list of revoked certificates.
    assert_eq!(place.check(&good, "crl = '/nowhere/revocations.pem'\n"), (Some(0), String::new()));
    let missing = place.0.join("missing.pem");
    let open = write("open.pem", &fs::read_to_string(&good.key).expect("ours"));
    fs::set_permissions(&open, fs::Permissions::from_mode(0o644)).expect("ours");
    let with = |change: &dyn Fn(&mut Files)| {
        let mut files = good.clone();
        change(&mut files);
        files
    };
    for (files, cause, remedy) in [
        (with(&|files| files.ca.clone_from(&missing)), "the authority's certificate", "check the path"),
        (with(&|files| files.cert.clone_from(&missing)), "the certificate", "check the path"),
        (with(&|files| files.key.clone_from(&missing)), "the private key", "check the path"),
        (with(&|files| files.ca = place.0.join("agent.toml")), "is not PEM", "-----BEGIN CERTIFICATE-----"),
        (with(&|files| files.key.clone_from(&other.key)), "is not the key of", "give the key that it was made for"),
        (with(&|files| files.key.clone_from(&open)), "other users can read", "chmod go="),
    ] {
        let (code, line) = place.check(&files, "");
        assert_eq!((code, line.lines().count()), (Some(2), 1), "{line}");
        assert!(line.contains("agent.toml: ") && line.contains(cause) && line.contains(remedy), "{line}");
    }
}

/// An administrator checks as root what the agent's user keeps: the unit makes the state directory for that user.
#[test]
fn root_may_check_the_files_of_the_agents_user() {
    const AGENT: u32 = 4242;
    let (place, authority) = (Place::new("check-as-root"), Authority::new());
    if fs::metadata(&place.0).expect("it was just made").uid() != 0 {
        aquifer_test_support::skip("only root can give files to another user");
        return;
    }
    let files = authority.sign_numbered("web-1", 1, &authority);
    fs::set_permissions(&files.key, fs::Permissions::from_mode(0o640)).expect("ours");
    let give = |path: &Path, user| chown(path, Some(user), Some(user)).expect("root may");
    give(&place.0.join("state"), AGENT);
    [&files.cert, &files.key, &files.ca].into_iter().for_each(|path| give(path, AGENT));
    assert_eq!(place.check(&files, ""), (Some(0), String::new()));
    give(&files.ca, AGENT + 1);
    let (code, line) = place.check(&files, "");
    assert!(code == Some(2) && line.contains("belongs to another user"), "{line}");
}

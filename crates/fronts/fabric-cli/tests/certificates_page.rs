// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Runs the commands of docs/operating/certificates.md on this machine: its configuration, tokens, joins, and a
//! revocation.
//!
//! Differs from the page in addresses and directories. The test carries out the shell's redirections.

mod program;

use std::fs;
use std::process::Command;

use program::Rack;

const PAGE: &str = include_str!("../../../../docs/operating/certificates.md");
const COMMAND: &str = "aquifer fabric ";
/// The serial number on the page.
const SERIAL: &str = "5d0e8f1c2b3a49586776859403120f1e";

/// Returns the text of the blocks with these words after their opening fence.
fn blocks(words: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut lines = PAGE.lines();
    while let Some(line) = lines.next() {
        let Some(fence) = line.trim_start().strip_prefix("```") else { continue };
        let block = lines.by_ref().take_while(|line| line.trim_start() != "```");
        let text: Vec<&str> = block.map(str::trim_start).collect();
        if fence == words {
            found.push(text.join("\n"));
        }
    }
    found
}

/// Checks the manager's settings in the steps by which its authority is replaced.
#[test]
fn the_settings_of_a_new_authority_are_settings() {
    for step in ["toml step 2", "toml step 3"] {
        let text = blocks(step).pop().expect("settings");
        let config = format!("state = \"s\"\n[peers]\nkind = \"simulated\"\n{text}");
        let config = aquifer_manager::Config::parse(&config).expect(step);
        let ca = config.ca.expect("it has an authority");
        assert_eq!(ca.next_key.is_some(), step == "toml step 2");
        assert_eq!(ca.old_key.is_some(), step == "toml step 3");
    }
}

#[test]
fn the_page_of_certificates_works_as_it_is_typed() {
    let config = blocks("toml fabricd.toml").pop().expect("a configuration");
    let mut rack = Rack::start("page", &config.replace("10.0.0.1", "127.0.0.1"));
    rack.more = vec!["--ca".into(), rack.directory.join("state/ca/trusted.pem").display().to_string()];
    rack.log_in();
    let manager = rack.url.strip_prefix("https://").expect("TLS").to_owned();
    let etc = rack.directory.join("etc").display().to_string();
    let mut typed = 0;
    for line in blocks("sh").iter().flat_map(|block| block.lines()) {
        let line = line.strip_prefix(COMMAND).unwrap_or_else(|| panic!("{line} is not a command of the pool"));
        let serial =
            || rack.json(&["token", "certificates"])["Members"][0]["Id"].as_str().expect("a serial number").to_owned();
        let line = line.replace("fabric.example:7443", &manager).replace("/etc/aquifer", &etc);
        let line = if line.contains(SERIAL) { line.replace(SERIAL, &serial()) } else { line };
        let (rest, output) = line.split_once(" > ").map_or((line.as_str(), None), |(rest, file)| (rest, Some(file)));
        let (rest, input) = rest.split_once(" < ").map_or((rest, None), |(rest, file)| (rest, Some(file)));
        let words: Vec<&str> = rest.split(' ').collect();
        let done = if words[0] == "join" {
            let input = fs::File::open(rack.directory.join(input.expect("a token"))).expect("it was made");
            let mut command = Command::new(env!("CARGO_BIN_EXE_aquifer-fabric"));
            command.args(&words).env_clear().stdin(input).output().expect("it starts")
        } else {
            rack.run(&words)
        };
        assert_eq!((done.status.code(), program::stderr(&done).as_str()), (Some(0), ""), "{line}");
        if let Some(file) = output {
            fs::write(rack.directory.join(file), program::stdout(&done)).expect("written");
        }
        typed += 1;
    }
    assert!(typed >= 10, "the page has {typed} commands");
    for file in ["d1/credentials.pem", "d1/ca.pem", "d1/revocations.pem", "h1/credentials.pem"] {
        assert!(fs::exists(format!("{etc}/{file}")).expect("readable"), "{file}");
    }
    let certificates = rack.json(&["token", "certificates"]);
    let members = certificates["Members"].as_array().expect("members");
    assert_eq!(members.iter().filter(|one| !one["Revoked"].is_null()).count(), 1);
    assert_eq!(members.iter().filter(|one| one["EndName"] == "d1").count(), 2, "d1 has joined twice");
}

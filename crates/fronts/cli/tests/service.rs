// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Checks that systemd accepts the packaged units, and that the donor's unit uses existing flags.

mod support;

use std::path::Path;
use std::process::Command;

use support::{aquifer, scratch, stdout};

const UNITS: [&str; 5] = [
    "aquifer-agent.service",
    "aquifer-donor.service",
    "aquifer-fabricd.service",
    "aquifer-metrics.service",
    "aquifer@.service",
];
/// Where the units have their programs. The command line stands for each, since systemd asks that they exist.
const PROGRAMS: [&str; 3] = [
    "/usr/local/libexec/aquifer/aquifer-agentd",
    "/usr/local/libexec/aquifer/aquifer-fabricd",
    "/usr/local/bin/aquifer",
];

fn unit(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../packaging").join(name);
    std::fs::read_to_string(path).expect("the unit is there")
}

#[test]
fn every_flag_of_the_unit_is_one_of_the_donors() {
    let help = stdout(&aquifer().args(["donor", "--help"]).output().unwrap());
    let unit = unit("aquifer-donor.service");
    let flags = unit.split_whitespace().filter(|word| word.starts_with("--"));
    let known = |flag: &str| help.contains(&format!("{flag} <")) || flag == "--bytes";
    let flags: Vec<&str> = flags.map(|flag| flag.trim_end_matches(['.', ',', ')'])).collect();
    assert!(flags.len() > 5, "{flags:?}");
    flags.iter().for_each(|flag| assert!(known(flag), "{flag} is not a flag of 'aquifer donor'"));
}

#[test]
fn every_packaged_unit_is_tested_here() {
    let packaging = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../packaging");
    let names = std::fs::read_dir(packaging).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = names.filter(|name| name.ends_with(".service")).collect();
    names.sort();
    assert_eq!(names, UNITS);
}

#[test]
fn systemd_takes_the_units() {
    UNITS.iter().for_each(|name| systemd_takes(name));
}

fn systemd_takes(name: &str) {
    let directory = scratch("unit");
    let file = directory.join(name.replace('@', "@web"));
    let here = |unit: String, program: &&str| unit.replace(program, env!("CARGO_BIN_EXE_aquifer"));
    std::fs::write(&file, PROGRAMS.iter().fold(unit(name), here)).unwrap();
    let verified = match Command::new("systemd-analyze").arg("verify").arg("--man=no").arg(&file).output() {
        Ok(output) => output,
        Err(error) => return aquifer_test_support::skip(format!("there is no systemd-analyze: {error}")),
    };
    let reported = String::from_utf8_lossy(&verified.stderr);
    if reported.contains("Failed to") && !reported.contains(&format!("{}:", name.replace('@', "@web"))) {
        return aquifer_test_support::skip(format!("systemd-analyze does not work here: {reported}"));
    }
    // Ignores messages about this machine's other units.
    let ours: Vec<&str> = reported.lines().filter(|line| line.contains(&name.replace('@', "@web"))).collect();
    assert!(ours.is_empty(), "{ours:#?}");
}

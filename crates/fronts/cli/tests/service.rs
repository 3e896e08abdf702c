// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Checks that systemd accepts the packaged units, and that the donor's unit uses existing flags.

mod support;

use std::path::Path;
use std::process::Command;

use support::{aquifer, scratch, stdout};

const UNITS: [&str; 6] = [
    "aquifer-agent.service",
    "aquifer-donor.service",
    "aquifer-fabricd.service",
    "aquifer-metrics.service",
    "aquifer-pool-switchd.service",
    "aquifer@.service",
];
/// Files that change a unit where they are copied into its directory of drop-ins, and that unit.
const DROP_INS: [(&str, &str); 1] = [("aquifer-agent-cxl.conf", "aquifer-agent.service")];
/// Where the units have their programs. The command line stands for each, since systemd asks that they exist.
const PROGRAMS: [&str; 4] = [
    "/usr/local/libexec/aquifer/aquifer-agentd",
    "/usr/local/libexec/aquifer/aquifer-fabricd",
    "/usr/local/libexec/aquifer/aquifer-pool-switchd",
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
    let mut names: Vec<String> = names.collect();
    names.sort();
    let (units, drop_ins) = (|name: &&String| name.ends_with(".service"), |name: &&String| name.ends_with(".conf"));
    assert!(names.iter().filter(units).eq(UNITS.iter()));
    assert!(names.iter().filter(drop_ins).eq(DROP_INS.iter().map(|(name, _)| name)));
}

/// What looks into /proc sees all programs of the host there, by their own numbers and users.
#[test]
fn units_that_look_at_programs_see_them() {
    for name in ["aquifer-agent.service", "aquifer-agent-cxl.conf", "aquifer-metrics.service"] {
        let unit = unit(name);
        for setting in ["ProtectProc", "ProcSubset", "PrivateUsers", "PrivatePIDs"] {
            let set = unit.lines().find(|line| line.starts_with(&format!("{setting}=")));
            assert_eq!(set, None, "{name} would not see programs");
        }
    }
}

#[test]
fn systemd_takes_the_units() {
    for name in UNITS {
        let Some(complaints) = complaints(name, None) else { return };
        assert!(complaints.is_empty(), "{complaints:#?}");
    }
}

#[test]
fn systemd_takes_the_units_with_their_drop_ins() {
    for (drop_in, name) in DROP_INS {
        let text = unit(drop_in);
        let Some(found) = complaints(name, Some(&text)) else { return };
        assert!(found.is_empty(), "{found:#?}");
        // Shows that systemd reads the drop-in, and complains about it.
        let wrong = text.replace("User=", "Userr=");
        let found = complaints(name, Some(&wrong)).expect("it works here");
        assert!(found.iter().any(|line| line.contains("Userr")), "{found:#?}");
    }
}

/// Returns what systemd says about a unit, with a drop-in or without one, or `None` if it cannot be asked here.
fn complaints(name: &str, drop_in: Option<&str>) -> Option<Vec<String>> {
    // Tests run at the same time, each with a directory of its own.
    let directory = scratch(if drop_in.is_some() { "drop-in" } else { "unit" });
    let name_here = name.replace('@', "@web");
    let file = directory.join(&name_here);
    let here = |unit: String, program: &&str| unit.replace(program, env!("CARGO_BIN_EXE_aquifer"));
    std::fs::write(&file, PROGRAMS.iter().fold(unit(name), here)).unwrap();
    if let Some(text) = drop_in {
        let drop_ins = directory.join(format!("{name_here}.d"));
        std::fs::create_dir_all(&drop_ins).unwrap();
        std::fs::write(drop_ins.join("own.conf"), text).unwrap();
    }
    let verified = match Command::new("systemd-analyze").arg("verify").arg("--man=no").arg(&file).output() {
        Ok(output) => output,
        Err(error) => {
            aquifer_test_support::skip(format!("there is no systemd-analyze: {error}"));
            return None;
        }
    };
    let reported = String::from_utf8_lossy(&verified.stderr);
    if reported.contains("Failed to") && !reported.contains(&format!("{name_here}:")) {
        aquifer_test_support::skip(format!("systemd-analyze does not work here: {reported}"));
        return None;
    }
    // Ignores messages about this machine's other units.
    Some(reported.lines().filter(|line| line.contains(&name_here)).map(str::to_owned).collect())
}

// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! If the preload library cannot start, the program is refused before it runs: one line, and exit status 125.
//!
//! The status used to be 113, that of a program that ran and that the pager had to end, so a script could not tell the
//! two apart. A tier's file beyond `ulimit -f` led to SIGXFSZ, or to a tier that accepted nothing.

use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;

use aquifer_e2e::build::{compile_text, scratch};
use aquifer_e2e::run::{Ended, LIMIT, managed, run};

/// Prints that it runs, and fills 48 MiB.
const PROGRAM: &str = r#"
#include <stdio.h>
#include <stdlib.h>
int main(void) {
    volatile char *start = malloc(48 << 20);
    puts("runs");
    for (size_t at = 0; at < 48 << 20; at += 512) start[at] = (char)(at >> 12 | 1);
    return 0;
}
"#;

/// Runs the program with a tier, under a limit of sh(1).
fn under(limit: &str, tier: &str) -> Option<Ended> {
    static BUILT: OnceLock<Option<PathBuf>> = OnceLock::new();
    let program = BUILT.get_or_init(|| compile_text("refused", PROGRAM)).as_deref()?;
    let ours = managed(&["--dram", "16MiB", "--tier", tier], program, &[]);
    let mut command = Command::new("sh");
    // Descriptors that cargo or its callers have left open would count, too.
    let script = format!("exec 3>&- 4>&- 5>&- 6>&- 7>&- 8>&- 9>&-; ulimit {limit}; exec \"$0\" \"$@\"");
    command.args(["-c", &script]).arg(ours.get_program()).args(ours.get_args());
    for (name, value) in ours.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    Some(run(command, LIMIT))
}

#[test]
fn a_tier_that_cannot_be_opened() {
    for kind in ["dram:", "emulated:nvme-gen4,"] {
        let Some(ended) = under("-c 0", &format!("{kind}size=15EiB")) else { return };
        let name = kind.split(':').next().expect("a kind");
        let [line] = ended.expect(125).said()[..] else { panic!("one line, not: {}", ended.stderr) };
        assert!(
            line.starts_with(&format!("aquifer: cannot start: the {name} tier should hold 15EiB, but only ")),
            "{line}"
        );
        assert!(line.ends_with(" of memory are available; give it less with size="), "{line}");
        assert_eq!(ended.stdout, "");
    }
    let directory = scratch("refused-size");
    let directory = directory.display();
    let Some(ended) = under("-c 0", &format!("flash:{directory},size=15EiB")) else { return };
    let [line] = ended.expect(125).said()[..] else { panic!("one line, not: {}", ended.stderr) };
    assert!(line.starts_with("aquifer: cannot start: the flash tier should hold 15EiB, but "), "{line}");
    assert!(line.ends_with("; give it less with size=, or another path"), "{line}");
}

/// sh(1) counts in units of 512 bytes, or of 1024 if it is bash, so the messages are compared without the number.
#[test]
fn a_tier_beyond_the_limit_on_file_size() {
    let directory = scratch("refused-limit");
    let flash = format!("flash:{}", directory.display());
    for (tier, name) in [("dram:", "dram"), (flash.as_str(), "flash")] {
        let Some(ended) = under("-f 1000", tier) else { return };
        let [line] = ended.expect(125).said()[..] else { panic!("one line, not: {}", ended.stderr) };
        assert!(line.starts_with("aquifer: cannot start: no file may be larger than "), "{line}");
        assert!(line.ends_with(&format!("KiB (ulimit -f), too little for a {name} tier; raise that limit")), "{line}");
        assert_eq!(ended.stdout, "");
    }
    for (tier, name) in [("dram:size=200MiB".to_owned(), "dram"), (format!("{flash},size=200MiB"), "flash")] {
        let Some(ended) = under("-f 1000", &tier) else { return };
        let [line] = ended.expect(125).said()[..] else { panic!("one line, not: {}", ended.stderr) };
        let cause =
            format!("aquifer: cannot start: the {name} tier should hold 200MiB, but no file may be larger than ");
        assert!(line.starts_with(&cause), "{line}");
        assert!(line.ends_with("KiB (ulimit -f); raise that limit, or give the tier less with size="), "{line}");
    }
    // A default size adapts to the limit.
    for tier in ["dram:", &flash] {
        let Some(ended) = under("-f 200000", tier) else { return };
        assert_eq!(ended.expect(0).stdout, "runs\n");
    }
}

/// The pager starts late, when the program outgrows its budget, and needs some more descriptors then.
#[test]
fn too_few_descriptors_for_the_pager_end_the_program_with_the_limit_to_raise() {
    let directory = scratch("refused-descriptors");
    let Some(ended) = under("-n 12", &format!("flash:{}", directory.display())) else { return };
    let [line] = ended.expect(113).said()[..] else { panic!("one line, not: {}", ended.stderr) };
    assert!(line.ends_with("; raise the limit of open files (ulimit -n)"), "{line}");
}

// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Bad input gets one line that names the cause and the remedy, and an exit status that names the kind of error.
//! Nothing is started.

mod support;

use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use support::{aquifer, compile, scratch, stand_in, stderr};

/// Runs the command, and compares its one line of output and its status.
fn refuses(preload: &Path, words: &[&str], status: i32, line: &str) {
    let output = aquifer().env("AQUIFER_PRELOAD", preload).args(words).output().unwrap();
    assert_eq!(stderr(&output), format!("aquifer: {line}\n"), "{words:?}");
    assert_eq!(output.status.code(), Some(status), "{words:?}");
    assert!(output.stdout.is_empty(), "{words:?}");
}

#[test]
fn arguments_that_make_no_sense() {
    let Some(preload) = stand_in() else { return };
    for (words, line) in [
        (
            &["run", "--", "true"][..],
            "the following required arguments were not provided: --dram <SIZE>; see 'aquifer run --help'",
        ),
        (
            &["run", "--dram", "1GiB"],
            "the following required arguments were not provided: <PROGRAM>...; see 'aquifer run --help'",
        ),
        (
            &["run", "--dram", "lots", "--", "true"],
            "invalid value 'lots' for '--dram <SIZE>': 'lots' is not a size; write a number and a unit, for example 4GiB or 307MiB",
        ),
        (
            &["run", "--dram", "20EiB", "--", "true"],
            "invalid value '20EiB' for '--dram <SIZE>': '20EiB' is more than 64 bits can count; give less than 16EiB",
        ),
        (&["run", "--dram", "15MiB", "--", "true"], "--dram 15MiB is below the pager's minimum; give at least 16MiB"),
        (
            &["run", "--dram", "16MiB", "--policy", "x", "--", "true"],
            "invalid value 'x' for '--policy <NAME>' [possible values: s3fifo, clock, lru, fifo]; see 'aquifer run --help'",
        ),
        (
            &["run", "--dram", "16MiB", "--policy", "s3fif", "--", "true"],
            "invalid value 's3fif' for '--policy <NAME>' [possible values: s3fifo, clock, lru, fifo]; a similar value exists: 's3fifo'",
        ),
        (
            &["run", "--dram", "16MiB", "--block", "5KiB", "--", "true"],
            "invalid value '5KiB' for '--block <SIZE|auto>': 5KiB cannot be a block; choose a power of two from 4KiB to 2MiB, or auto",
        ),
        (
            &["vm", "--dram", "16MiB"],
            "the following required arguments were not provided: --memory <SIZE>; see 'aquifer vm --help'",
        ),
        (
            &["vm", "--dram", "16MiB", "--memory", "1025KiB"],
            "--memory of 1049600 bytes is not a whole number of MiB; give a multiple of 1MiB, for example 1GiB",
        ),
        (
            &["vm", "--dram", "16MiB", "--memory", "1GiB", "--accel", "xen"],
            "invalid value 'xen' for '--accel <NAME>' [possible values: auto, kvm, tcg]; see 'aquifer vm --help'",
        ),
        (
            &["vm", "--dram", "16MiB", "--memory", "1GiB", "--cpus", "0"],
            "invalid value '0' for '--cpus <NUMBER>': 0 is not in 1..=1024",
        ),
        (
            &["vm", "--dram", "16MiB", "--memory", "1GiB", "--accel", "kvm", "--delivery", "signal"],
            "--accel kvm cannot have --delivery signal: under KVM the kernel takes a guest's faults; leave --delivery out",
        ),
        (
            &["run", "--drum", "16MiB", "--", "true"],
            "unexpected argument '--drum' found; a similar argument exists: '--dram'",
        ),
        (
            &["run", "--dram", "16MiB", "--tier", "dram:", "--tier", "dram:", "--", "true"],
            "--tier: tiers 1 and 2 store to the same place; name each place only once",
        ),
        (
            &[
                &["run", "--dram", "16MiB"][..],
                &["--tier", "dram:", "--tier", "flash:/tmp/a", "--tier", "flash:/tmp/b", "--tier", "flash:/tmp/c"],
                &["--tier", "flash:/tmp/d", "--", "true"],
            ]
            .concat(),
            "--tier: a chain of 5 tiers is too long; give at most 4",
        ),
        (
            &["run", "--dram", "16MiB", "--tier", "dram:", "--", ""],
            "the program's name is empty; write the program after --",
        ),
        (
            &["stat", "abc"],
            "invalid value 'abc' for '[PID]': a process id is a number; 'aquifer stat' alone shows every program with its own",
        ),
        (
            &["stat", "--json", "--prometheus"],
            "the argument '--json' cannot be used with '--prometheus'; see 'aquifer stat --help'",
        ),
        (
            &["stat", "--watch", "0"],
            "invalid value '0' for '--watch <SECONDS>': 0 seconds is out of range; choose from 0.1 to 86400",
        ),
        (
            &["top"],
            "'aquifer top' draws on a terminal, and standard output is not one; for scripts use 'aquifer stat --json --watch 1'",
        ),
        (&["rum"], "unrecognized subcommand 'rum'; a similar subcommand exists: 'run'"),
        (&["nonsense"], "unrecognized subcommand 'nonsense'; see 'aquifer --help'"),
    ] {
        refuses(preload, words, 2, line);
    }
}

#[test]
fn all_wrong_arguments_are_named_at_once() {
    let Some(preload) = stand_in() else { return };
    for (words, status, lines) in [
        (
            &["run", "--dram", "lots", "--policy", "x", "--", "true"][..],
            2,
            "invalid value 'lots' for '--dram <SIZE>': 'lots' is not a size; write a number and a unit, for example \
             4GiB or 307MiB\naquifer: \
             invalid value 'x' for '--policy <NAME>' [possible values: s3fifo, clock, lru, fifo]; \
             see 'aquifer run --help'",
        ),
        (
            &["run", "--dram", "15MiB", "--stats-json", "-", "--tier", "tape:", "--tier", "dram:size=20EiB", "--", ""],
            2,
            "--dram 15MiB is below the pager's minimum; give at least 16MiB\naquifer: \
             --stats-json - is not a file, and stdout is the program's; name a file, or ./- for one of that name\n\
             aquifer: invalid value 'tape:' for '--tier <SPEC>': 'tape' is not a kind of tier; write flash:PATH, \
             dram:, node:N, dax:PATH, compressed:, donor:HOST:PORT, pool:VOLUME or emulated:PROFILE\naquifer: \
             invalid value 'dram:size=20EiB' for '--tier <SPEC>': '20EiB' is more than 64 bits can count; give \
             less than 16EiB\naquifer: the program's name is empty; write the program after --",
        ),
    ] {
        refuses(preload, words, status, lines);
    }
}

#[test]
fn a_budget_larger_than_the_machine() {
    for size in ["1000TiB", "15EiB"] {
        let output = aquifer().args(["run", "--dram", size, "--", "true"]).output().unwrap();
        assert_eq!(output.status.code(), Some(2));
        let line = stderr(&output);
        assert!(line.starts_with(&format!("aquifer: --dram {size} is more than this machine's memory (")), "{line}");
        assert!(line.contains("; give at most "), "{line}");
        assert_eq!(line.lines().count(), 1);
    }
}

#[test]
fn a_tier_that_is_none() {
    let Some(preload) = stand_in() else { return };
    for (spec, why) in [
        (
            "tape:",
            "'tape' is not a kind of tier; write flash:PATH, dram:, node:N, dax:PATH, compressed:, donor:HOST:PORT, \
             pool:VOLUME or emulated:PROFILE",
        ),
        (
            "donor:10.0.0.2:7411",
            "memory goes to a donor over TLS unless plain text is asked for, and that takes certificates; write \
             donor:10.0.0.2:7411,cert=FILE,key=FILE,ca=FILE, or donor:10.0.0.2:7411,security=plain where nobody else \
             is on the network",
        ),
        ("dram:size=20EiB", "'20EiB' is more than 64 bits can count; give less than 16EiB"),
        (
            "emulated:tape",
            "device profile tape: no profile has this name; use cmm-b-switch, cmm-h, nvme-gen4, rdma-100g, \
             rdma-400g, xl-flash-mlc, xl-flash-slc, or a path",
        ),
    ] {
        let line = format!("invalid value '{spec}' for '--tier <SPEC>': {why}");
        refuses(preload, &["run", "--dram", "16MiB", "--tier", spec, "--", "true"], 2, &line);
    }
    // The wording is the same when clap reports the error.
    let line = "invalid value 'tape:' for '--tier <SPEC>': 'tape' is not a kind of tier; write flash:PATH, dram:, \
                node:N, dax:PATH, compressed:, donor:HOST:PORT, pool:VOLUME or emulated:PROFILE";
    refuses(preload, &["doctor", "--tier", "tape:"], 2, line);
}

#[test]
fn a_donor_that_lends_in_plain_text_unasked() {
    let Some(preload) = stand_in() else { return };
    let line = "memory is lent over TLS unless plain text is asked for, and that takes certificates; give --tls-cert \
                FILE, --tls-key FILE and --tls-ca FILE, or --security plain where nobody else is on the network";
    refuses(preload, &["donor", "--size", "64MiB"], 2, line);
    refuses(preload, &["donor", "--size", "64MiB", "--security", "tls", "--tls-cert", "c.pem"], 2, line);
    let line = "--security plain uses no certificates; leave it out, or leave --tls-cert, --tls-key and --tls-ca out";
    refuses(preload, &["donor", "--size", "64MiB", "--security", "plain", "--tls-cert", "c.pem"], 2, line);
    let files = ["--tls-cert", "/nowhere/c.pem", "--tls-key", "/nowhere/k.pem", "--tls-ca", "/nowhere/ca.pem"];
    let line = "the private key /nowhere/k.pem cannot be read: No such file or directory (os error 2); check the path";
    refuses(preload, &[&["donor", "--size", "64MiB"], &files[..]].concat(), 1, line);
    let tier = "donor:127.0.0.1:1,cert=/nowhere/c.pem,key=/nowhere/k.pem,ca=/nowhere/ca.pem";
    let words = ["run", "--dram", "16MiB", "--tier", tier, "--", "true"];
    refuses(preload, &words, 125, &format!("--tier {tier}: {line}"));
    let line = "a donor lends slabs of 2 MiB; lend at least one, for example 64GiB";
    refuses(preload, &["donor", "--size", "64", "--security", "plain"], 1, line);
    let plain = ["donor", "--size", "64MiB", "--security", "plain"];
    let line = "a quota of 1KiB is less than a slab of 2 MiB, so nobody could borrow anything; give 2MiB or more, or leave \
                --quota out";
    refuses(preload, &[&plain[..], &["--quota", "1KiB"]].concat(), 2, line);
    let line = "with --connections 0 nobody could borrow anything; give ten for each busy borrower";
    refuses(preload, &[&plain[..], &["--connections", "0"]].concat(), 2, line);
}

#[test]
fn places_that_are_not_there() {
    let Some(preload) = stand_in() else { return };
    let run = ["run", "--dram", "16MiB"];
    refuses(
        preload,
        &[&run[..], &["--tier", "flash:/nowhere/cold", "--", "true"]].concat(),
        125,
        "--tier flash:/nowhere/cold: directory /nowhere does not exist; create it: mkdir -p /nowhere",
    );
    refuses(
        preload,
        &[&run[..], &["--tier", "flash:/nowhere/cold/", "--", "true"]].concat(),
        125,
        "--tier flash:/nowhere/cold/: directory /nowhere/cold does not exist; create it: mkdir -p /nowhere/cold",
    );
    let in_root =
        "there is no /nowhere, and no file is made in /; mount or create it, or name a file in another directory";
    refuses(
        preload,
        &[&run[..], &["--tier", "flash:/nowhere,size=1GiB", "--", "true"]].concat(),
        125,
        &format!("--tier flash:/nowhere,size=1GiB: {in_root}"),
    );
    refuses(preload, &["doctor", "--tier", "flash:/nowhere"], 1, &format!("--tier: {in_root}"));
    refuses(
        preload,
        &[&run[..], &["--state-dir", "/nowhere", "--", "true"]].concat(),
        125,
        "the state directory /nowhere cannot be used: No such file or directory (os error 2); try: mkdir -p /nowhere",
    );
    refuses(
        preload,
        &[&run[..], &["--state-dir", "/dev/null", "--", "true"]].concat(),
        125,
        "the state directory /dev/null is not a directory; name another with --state-dir",
    );
    refuses(
        preload,
        &[&run[..], &["--tier", "dram:", "--stats-json", "/nowhere/stats.json", "--", "true"]].concat(),
        125,
        "--stats-json /nowhere/stats.json cannot be written: No such file or directory (os error 2); name a file in a directory that exists",
    );
}

#[test]
fn a_preload_library_that_is_none() {
    for (preload, line) in [
        ("/nowhere/l.so", "the preload library /nowhere/l.so cannot be opened: No such file or directory (os error 2)"),
        ("/dev/null", "the preload library /dev/null is not a shared library: it is cut short"),
    ] {
        refuses(
            Path::new(preload),
            &["run", "--dram", "16MiB", "--tier", "dram:", "--", "true"],
            125,
            &format!("{line}; AQUIFER_PRELOAD is set to it; set it to libaquifer_preload.so, or unset it"),
        );
    }
}

/// As root, the command used to load the library that the variable named, without checking who owns it.
#[test]
fn a_preload_library_that_others_can_change() {
    const NOBODY: u32 = 65534;
    let Some(preload) = stand_in() else { return };
    let library = scratch("others-library").join("l.so");
    std::fs::copy(preload, &library).unwrap();
    let shown = library.display();
    let words = ["run", "--dram", "16MiB", "--tier", "dram:", "--", "true"];
    std::fs::set_permissions(&library, std::fs::Permissions::from_mode(0o757)).unwrap();
    let line = format!("AQUIFER_PRELOAD: other users can write to {shown}; try: chmod go-w {shown}");
    refuses(&library, &words, 125, &line);
    std::fs::set_permissions(&library, std::fs::Permissions::from_mode(0o755)).unwrap();
    if std::os::unix::fs::chown(&library, Some(NOBODY), None).is_err() {
        return aquifer_test_support::skip_part("another owner", "only root can give a file to another user");
    }
    let line = format!(
        "AQUIFER_PRELOAD: {shown} belongs to another user (uid {NOBODY}); name one of your own, or try: chown 0 {shown}"
    );
    refuses(&library, &words, 125, &line);
}

#[test]
fn programs_that_cannot_be_run() {
    let Some(preload) = stand_in() else { return };
    let directory = scratch("programs");
    let write = |name: &str, mode: u32, contents: &[u8]| {
        let path = directory.join(name);
        std::fs::write(&path, contents).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
    };
    write("plain", 0o644, b"#!/bin/sh\n");
    write("blob", 0o755, b"MZ\0\0\0");
    write("no-interpreter", 0o755, b"#!/nowhere/python\n");
    write("closed-interpreter", 0o755, format!("#!{}/plain\n", directory.display()).as_bytes());
    write("broken", 0o755, b"\x7fELF\x02\x01");
    let mut foreign = vec![0; 64];
    foreign[..6].copy_from_slice(b"\x7fELF\x02\x02");
    foreign[19] = 22;
    write("foreign", 0o755, &foreign);
    let at = directory.display().to_string();
    let native = std::env::consts::ARCH;
    for (program, status, line) in [
        (
            "/nowhere/p".to_owned(),
            127,
            "'/nowhere/p' cannot be found: No such file or directory (os error 2); check the path".to_owned(),
        ),
        ("no-such-program".into(), 127, "'no-such-program' is not on PATH; install it, or give its path".into()),
        (at.clone(), 126, format!("'{at}' is a directory; name the program in it")),
        (
            format!("{at}/plain"),
            126,
            format!("'{at}/plain' cannot be executed: Permission denied; try: chmod +x {at}/plain"),
        ),
        (
            format!("{at}/blob"),
            126,
            format!("'{at}/blob' is neither an ELF program nor a script; a script starts with #! and its interpreter"),
        ),
        (
            format!("{at}/no-interpreter"),
            126,
            format!(
                "'{at}/no-interpreter' is a script for '/nowhere/python', which is not there; install that, or correct \
                 the script's first line"
            ),
        ),
        (
            format!("{at}/closed-interpreter"),
            126,
            format!(
                "'{at}/closed-interpreter' is a script, and its interpreter cannot be used: '{at}/plain' cannot be \
                 executed: Permission denied; try: chmod +x {at}/plain"
            ),
        ),
        (
            format!("{at}/broken"),
            126,
            format!("'{at}/broken' is a broken ELF file: it is cut short; build or install it again"),
        ),
        (
            format!("{at}/foreign"),
            126,
            format!("'{at}/foreign' is built for s390x, and this is {native}; build it for {native}"),
        ),
    ] {
        refuses(preload, &["run", "--dram", "16MiB", "--tier", "dram:", "--", &program], status, &line);
    }
}

/// Limits set by the starting shell that are lower than the command itself needs.
#[test]
fn limits_that_leave_no_room() {
    let Some(preload) = stand_in() else { return };
    let open_files = "Too many open files";
    for (limit, cause, remedy) in [
        ("-n 4", "cannot be opened", "raise the limit on open files (ulimit -n)"),
        ("-n 5", "the statistics segment cannot be shared", "raise the limit on open files (ulimit -n)"),
        ("-n 6", "the ledger of the budget cannot be made", "raise the limit on open files (ulimit -n)"),
        ("-n 7", "the ledger of the budget cannot be shared", "raise the limit on open files (ulimit -n)"),
        ("-n 8", "cannot be started", "raise the limit on open files (ulimit -n)"),
        ("-f 10", "the statistics segment cannot be made", "raise the limit on file size (ulimit -f)"),
    ] {
        // Descriptors that cargo or its callers have left open would count, too.
        let script = format!("exec 3>&- 4>&- 5>&- 6>&- 7>&- 8>&- 9>&-; ulimit {limit}; exec \"$0\" \"$@\"");
        let output = Command::new("sh")
            .args(["-c", &script, env!("CARGO_BIN_EXE_aquifer")])
            .args(["run", "--dram", "16MiB", "--tier", "dram:", "--", "true"])
            .env("AQUIFER_PRELOAD", preload)
            .output()
            .unwrap();
        let line = stderr(&output);
        let errno = if limit.starts_with("-n") { open_files } else { "File too large (os error 27)" };
        assert_eq!(output.status.code(), Some(125), "ulimit {limit}: {line}");
        assert!(line.contains(&format!("{cause}: {errno}")), "ulimit {limit}: {line}");
        assert!(line.ends_with(&format!("; {remedy}\n")), "ulimit {limit}: {line}");
        assert_eq!(line.lines().count(), 1, "{line}");
    }
}

#[test]
fn a_static_program_is_refused() {
    let Some(preload) = stand_in() else { return };
    let directory = scratch("static");
    for flag in ["-static", "-static-pie"] {
        let Some(program) = compile(&directory, "still", "int main(void) { return 0; }", &[flag]) else { continue };
        let shown = program.display();
        refuses(
            preload,
            &["run", "--dram", "16MiB", "--tier", "dram:", "--", &shown.to_string()],
            126,
            &format!(
                "'{shown}' is statically linked, and nothing can be preloaded into it; link it dynamically (without -static)"
            ),
        );
    }
}

/// The loader ignores the library in a program that gains rights, so the program would run without its budget.
#[test]
fn programs_with_rights_of_their_own_are_refused() {
    const NOBODY: u32 = 65534;
    let Some(preload) = stand_in() else { return };
    // Not below the target directory, which another user may not be able to access.
    let directory = std::env::temp_dir().join(format!("aquifer-rights-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    let place = |name: &str, from: &Path| {
        let to = directory.join(name);
        // Not by this process, whose other tests may start a program meanwhile: while that has the copy open for
        // writing, it cannot be executed.
        assert!(Command::new("cp").args([from, to.as_path()]).status().unwrap().success());
        std::fs::set_permissions(&to, std::fs::Permissions::from_mode(0o755)).unwrap();
        to
    };
    let program = place("program", Path::new("/bin/true"));
    let shown = program.display().to_string();
    let refused = |command: &mut Command, line: &str| {
        let command = command.env_clear().env("AQUIFER_PRELOAD", place("preload.so", preload));
        let output = command.args(["run", "--dram", "16MiB", "--tier", "dram:", "--", &shown]).output().unwrap();
        assert_eq!(stderr(&output), format!("aquifer: '{shown}' {line}\n"));
        assert_eq!(output.status.code(), Some(126));
    };
    let ignored = "and then the loader ignores preloaded libraries";
    if std::os::unix::fs::chown(&program, None, Some(NOBODY)).is_ok() {
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o2755)).unwrap();
        let line = format!("runs with the rights of another group, {ignored}; run aquifer with that group, by sg(1)");
        refused(&mut aquifer(), &line);
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
    } else {
        aquifer_test_support::skip_part("another group", "only root can give a file to another group");
    }
    let marked = Command::new("setcap").args(["cap_net_raw+ep", &shown]).status();
    if marked.is_ok_and(|status| status.success()) {
        let command = place("aquifer", Path::new(env!("CARGO_BIN_EXE_aquifer")));
        let line = format!(
            "runs with capabilities of its own, {ignored}; run aquifer as root, or give it a copy of the program \
             without them (setcap -r)"
        );
        refused(Command::new(command).uid(NOBODY), &line);
    } else {
        aquifer_test_support::skip_part("capabilities", "setcap(8) is not there, or this user may not use it");
    }
    std::fs::remove_dir_all(&directory).unwrap();
}

#[test]
fn processes_that_are_not_ours() {
    let Some(preload) = stand_in() else { return };
    refuses(
        preload,
        &["stat", "4194304"],
        1,
        "there is no process 4194304; see 'aquifer stat' for the programs that run",
    );
    let own = std::process::id().to_string();
    let line = format!(
        "process {own} does not run under aquifer; start it with 'aquifer run', or see 'aquifer stat' for those that do"
    );
    refuses(preload, &["stat", &own], 1, &line);
}

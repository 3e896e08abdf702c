// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! `aquifer run` as a parent: the program keeps its own status, streams and signals, and the statistics are written
//! however the program exits. Uses real children, and a stand-in for the pager.

mod support;

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use aquifer_config::{BlockSize, Config, Delivery};
use support::{aquifer, eventually, run, run_as_from_a_terminal, scratch, signal, stand_in, stderr, stdout};

/// Starts a shell script under `aquifer run` and waits for its first line. The process ends by itself after a while.
fn start(preload: &Path, script: &str) -> (Child, String, BufReader<std::process::ChildStdout>) {
    let mut command = run_as_from_a_terminal(preload);
    command.args(["--", "sh", "-c", script]).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap());
    let mut first = String::new();
    lines.read_line(&mut first).unwrap();
    (child, first.trim().to_owned(), lines)
}

#[test]
fn the_exit_status_is_passed_through() {
    let Some(preload) = stand_in() else { return };
    for status in [0, 1, 2, 42, 125, 255] {
        let output = run(preload).args(["--", "sh", "-c", &format!("exit {status}")]).output().unwrap();
        assert_eq!(output.status.code(), Some(status));
        assert_eq!(stderr(&output), "");
    }
}

#[test]
fn a_signal_becomes_128_and_its_number() {
    let Some(preload) = stand_in() else { return };
    for (name, number) in [("SEGV", 11), ("KILL", 9), ("ABRT", 6)] {
        let script = format!("ulimit -c 0; kill -{name} $$");
        let output = run(preload).args(["--", "sh", "-c", &script]).output().unwrap();
        assert_eq!(output.status.code(), Some(128 + number));
        assert_eq!(stderr(&output), format!("aquifer: 'sh' was ended by SIG{name}\n"));
    }
}

/// The launcher said that it has a bug, with the status of a program that was not started, and wrote no statistics.
#[test]
fn a_real_time_signal_is_a_signal_like_any_other() {
    let Some(preload) = stand_in() else { return };
    let file = scratch("real-time").join("stats.json");
    for number in [34, 64] {
        let mut command = run(preload);
        command.arg("--stats-json").arg(&file).args(["--", "sh", "-c", &format!("kill -{number} $$")]);
        let output = command.output().unwrap();
        assert_eq!(output.status.code(), Some(128 + number), "{}", stderr(&output));
        assert_eq!(stderr(&output), format!("aquifer: 'sh' was ended by signal {number}\n"));
        let json: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(&file).unwrap()).unwrap();
        assert_eq!(json["process"]["signal"], format!("signal {number}"));
    }
}

/// In a container the launcher is the first process, and inherits orphans. They stayed zombies.
#[test]
fn orphans_that_the_launcher_inherits_do_not_stay() {
    const INHERIT: &str = r#"
#include <sys/prctl.h>
#include <unistd.h>
int main(int count, char **words) {
    return prctl(PR_SET_CHILD_SUBREAPER, 1) == 0 && count > 1 && execv(words[1], words + 1) == 0 ? 0 : 127;
}
"#;
    let Some(preload) = stand_in() else { return };
    let inherit = support::compile(&scratch("inherit"), "inherit", INHERIT, &[]).expect("cc built the stand-in");
    let launcher = run(preload);
    let mut command = std::process::Command::new(inherit);
    command.arg(launcher.get_program()).args(launcher.get_args()).env("AQUIFER_PRELOAD", preload);
    // Waits until the launcher, which is its parent, has no other child.
    let script = "(sleep 2 &); children=/proc/$PPID/task/$PPID/children; \
        test $(wc -w < $children) -gt 1 && echo inherited; \
        for _ in $(seq 600); do test $(wc -w < $children) -gt 1 || exit 7; sleep 0.1; done";
    let output = command.args(["--", "sh", "-c", script]).output().unwrap();
    assert_eq!((stdout(&output).as_str(), output.status.code()), ("inherited\n", Some(7)), "{}", stderr(&output));
}

#[test]
fn streams_arguments_and_name_are_the_programs_own() {
    let Some(preload) = stand_in() else { return };
    let mut child = run(preload)
        .args(["sh", "-c", "cat; echo \"$0 $1\" >&2", "--dram", "--help"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(b"through\n").unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!((stdout(&output).as_str(), stderr(&output).as_str()), ("through\n", "--dram --help\n"));
    let output = run(preload).args(["--", "sh", "-c", "tr '\\0' ' ' < /proc/$$/cmdline"]).output().unwrap();
    assert!(stdout(&output).starts_with("sh -c "), "{}", stdout(&output));
}

#[test]
fn the_program_sees_the_configuration_and_the_segment() {
    let Some(preload) = stand_in() else { return };
    let directory = scratch("configuration");
    let output = run(preload)
        .current_dir(&directory)
        .env("LD_PRELOAD", preload)
        .args(["--block", "128KiB", "--delivery", "signal", "--prefetch", "off", "--record", "events", "-vv"])
        .args(["--", "sh", "-c", "echo \"$AQUIFER_CONFIG\"; echo \"$LD_PRELOAD\"; ls -l /proc/$$/fd"])
        .output()
        .unwrap();
    let text = stdout(&output);
    let mut lines = text.lines();
    let config = Config::from_json(lines.next().unwrap()).unwrap();
    assert_eq!(lines.next(), preload.to_str());
    assert_eq!(config.dram_bytes, 16 << 20);
    assert_eq!(config.tiers, ["dram:"]);
    assert_eq!((config.block, config.delivery), (BlockSize::Bytes(131_072), Delivery::Signal));
    assert_eq!((config.prefetch, config.verbose), (false, 2));
    assert_eq!(config.record.as_deref(), directory.join("events").to_str());
    let descriptor = format!(" {} -> /memfd:aquifer-stats (deleted)", config.stats_fd.unwrap());
    assert!(text.contains(&descriptor), "{text}");
    assert_eq!(text.matches("memfd:aquifer-stats").count(), 1, "only the one descriptor is inherited");
    assert!(config.stats_fd.unwrap() >= 200);
}

#[test]
fn statistics_are_written_when_the_program_is_killed() {
    let Some(preload) = stand_in() else { return };
    let file = scratch("stats").join("stats.json");
    let output =
        run(preload).arg("--stats-json").arg(&file).args(["--", "sh", "-c", "kill -KILL $$"]).output().unwrap();
    assert_eq!(output.status.code(), Some(137));
    let stats: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(&file).unwrap()).unwrap();
    assert_eq!(stats["faults"], 5);
    for name in ["fetched_bytes", "written_back_bytes", "evicted_blocks", "resident_bytes_peak", "errors"] {
        assert_eq!(stats[name], 0, "{name}");
    }
    for name in ["p50", "p99", "max"] {
        assert!(stats["fault_latency_us"][name].is_number(), "{name}");
    }
    assert_eq!(
        (&stats["program"], &stats["tier"], &stats["policy"]),
        (&"sh".into(), &"dram:".into(), &"s3fifo".into())
    );
    assert_eq!((&stats["process"]["exit_status"], &stats["process"]["signal"]), (&137.into(), &"SIGKILL".into()));
    assert!(stats["process"]["rss_bytes_peak"].as_u64() > Some(0));
}

/// The status is the program's own, so a report that cannot be written is only a message.
#[test]
fn statistics_that_cannot_be_written_are_reported() {
    let Some(preload) = stand_in() else { return };
    let output = run(preload).args(["--stats-json", "/dev/full", "--", "sh", "-c", "exit 7"]).output().unwrap();
    assert_eq!(output.status.code(), Some(7));
    assert_eq!(
        stderr(&output),
        "aquifer: --stats-json /dev/full could not be written: No space left on device (os error 28); free some space\n"
    );
}

#[test]
fn a_program_that_never_loads_the_library_is_reported() {
    let Some(preload) = stand_in() else { return };
    let script = "exit 3";
    let empty = support::compile(&scratch("empty"), "empty.so", "", &["-shared", "-fPIC"]);
    let output = run(empty.as_deref().unwrap_or(preload)).args(["--", "sh", "-c", script]).output().unwrap();
    assert_eq!(output.status.code(), Some(3));
    let wanted = "aquifer: 'sh' did not load the preload library, so its budget was not enforced; ";
    assert!(stderr(&output).starts_with(wanted), "{}", stderr(&output));
    assert_eq!(stderr(&output).lines().count(), 1);
}

#[test]
fn scripts_run_by_their_interpreter() {
    let Some(preload) = stand_in() else { return };
    let directory = scratch("script");
    for (name, contents) in [("hash-bang", "#!/bin/sh\nexit 9\n"), ("bare", "exit 9\n")] {
        let path = directory.join(name);
        std::fs::write(&path, contents).unwrap();
        std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        assert_eq!(run(preload).arg("--").arg(&path).output().unwrap().status.code(), Some(9), "{name}");
    }
}

#[test]
fn signals_sent_to_us_reach_the_program() {
    let Some(preload) = stand_in() else { return };
    for name in ["TERM", "INT", "HUP", "QUIT", "USR1", "USR2", "WINCH"] {
        let script = format!("trap 'exit 42' {name}; echo ready; while :; do sleep 0.02; done");
        let (mut child, first, _) = start(preload, &script);
        assert_eq!(first, "ready");
        signal(name, &child);
        assert_eq!(child.wait().unwrap().code(), Some(42), "{name}");
    }
}

#[test]
fn a_signal_without_a_trap_ends_both() {
    let Some(preload) = stand_in() else { return };
    let (mut child, _, _) = start(preload, "echo ready; exec sleep 100");
    signal("TERM", &child);
    let status = child.wait().unwrap();
    assert_eq!((status.code(), status.signal()), (Some(143), None));
}

#[test]
fn the_program_dies_with_a_launcher_that_is_killed() {
    let Some(preload) = stand_in() else { return };
    let (mut child, pid, _) = start(preload, "echo $$; exec sleep 100");
    assert!(Path::new(&format!("/proc/{pid}")).exists());
    signal("KILL", &child);
    child.wait().unwrap();
    eventually("the program's death", || {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        status.is_empty() || status.contains("State:\tZ")
    });
}

#[test]
fn the_program_keeps_the_signal_mask_and_ignored_signals_of_the_caller() {
    let Some(preload) = stand_in() else { return };
    let script = "grep -E 'Sig(Blk|Ign)' /proc/self/status";
    let plain = std::process::Command::new("sh").args(["-c", script]).output().unwrap();
    let ours = run(preload).args(["--", "sh", "-c", script]).output().unwrap();
    assert_eq!(stdout(&ours), stdout(&plain));
}

/// With so small a stack limit, reading the command line used to overflow the stack and abort the command.
#[test]
fn a_limit_on_stacks_is_the_programs() {
    let Some(preload) = stand_in() else { return };
    let script = "ulimit -S -s 64 && exec \"$0\" run --dram 16MiB --tier dram: -- sh -c 'ulimit -S -s'";
    let output = std::process::Command::new("sh")
        .args(["-c", script, env!("CARGO_BIN_EXE_aquifer")])
        .env("AQUIFER_PRELOAD", preload)
        .output()
        .unwrap();
    assert_eq!((stdout(&output).as_str(), output.status.code()), ("64\n", Some(0)), "{}", stderr(&output));
}

/// If the parent ignores SIGCHLD, the kernel discards exit statuses, unless the command undoes it.
#[test]
fn an_inherited_ignore_of_sigchld_does_no_harm() {
    let Some(preload) = stand_in() else { return };
    let mut command = std::process::Command::new("sh");
    let script = "trap '' CHLD; exec \"$0\" run --dram 16MiB --tier dram: -- sh -c 'exit 6'";
    let output =
        command.args(["-c", script, env!("CARGO_BIN_EXE_aquifer")]).env("AQUIFER_PRELOAD", preload).output().unwrap();
    assert_eq!(output.status.code(), Some(6), "{}", stderr(&output));
}

#[test]
fn running_programs_are_seen_from_outside() {
    let Some(preload) = stand_in() else { return };
    let (mut child, pid, _lines) = start(preload, "echo $$; exec sleep 100");
    let seen = |words: &[&str]| {
        let output = aquifer().arg("stat").args(words).output().unwrap();
        assert!(output.status.success(), "{}", stderr(&output));
        stdout(&output)
    };
    let launcher = child.id().to_string();
    for process in [&launcher, &pid] {
        let stats: serde_json::Value = serde_json::from_str(&seen(&[process, "--json"])).unwrap();
        assert_eq!((&stats["pid"], &stats["faults"]), (&pid.parse::<u64>().unwrap().into(), &5.into()));
    }
    assert!(seen(&["--json"]).lines().any(|line| line.contains(&format!("\"pid\":{pid}"))));
    assert!(seen(&["--prometheus"]).contains(&format!("aquifer_faults_total{{pid=\"{pid}\",program=\"sh\"}} 5")));
    assert!(seen(&[&pid]).starts_with(&format!("sh (pid {pid}): ")));

    let mut watch = aquifer().args(["stat", &pid, "--json", "--watch", "0.1"]).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(watch.stdout.take().unwrap());
    let mut line = String::new();
    for _ in 0..2 {
        line.clear();
        lines.read_line(&mut line).unwrap();
        assert!(line.contains("\"faults\":5"), "{line}");
    }
    signal("TERM", &child);
    child.wait().unwrap();
    let mut rest = String::new();
    lines.read_to_string(&mut rest).unwrap();
    assert!(watch.wait().unwrap().success(), "watching ends with the program");
    assert_eq!(aquifer().args(["stat", &pid]).output().unwrap().status.code(), Some(1));
}

/// A start takes about 10 ms in a release build, as measured by `aquifer bench`. The bound here catches a sleep or a
/// timeout in every start, even on a busy machine.
#[test]
fn no_start_waits_for_a_timeout() {
    const STARTS: u32 = 30;
    let Some(preload) = stand_in() else { return };
    let begun = Instant::now();
    for _ in 0..STARTS {
        run(preload).args(["--", "true"]).output().unwrap();
    }
    assert!(begun.elapsed() < Duration::from_secs(60), "{STARTS} starts took {:?}", begun.elapsed());
}

#[test]
fn a_virtual_machine_is_a_run_of_qemu() {
    let words = ["vm", "--dram", "300MiB", "--memory", "1GiB", "--accel", "tcg", "--policy", "lru", "--dry-run"];
    let output = aquifer().args(words).args(["--", "-append", "console=ttyS0 quiet"]).output().unwrap();
    assert_eq!(stderr(&output), "");
    assert_eq!(
        stdout(&output),
        "aquifer run --dram 300MiB --policy lru --delivery signal -- qemu-system-x86_64 -machine \
         q35,accel=tcg,memory-backend=guest-memory -object memory-backend-ram,id=guest-memory,size=1024M,share=off,\
         prealloc=off,merge=off -m 1024M -smp 2 -cpu max -device virtio-balloon-pci,free-page-reporting=on -append \
         'console=ttyS0 quiet'\n"
    );
}

#[test]
fn a_virtual_machine_ends_as_its_qemu_did() {
    let Some(stand_in) = stand_in() else { return };
    let directory = scratch("vm");
    let qemu = directory.join("qemu");
    std::fs::write(&qemu, "#!/bin/sh\necho \"$@\"\nexit 33\n").unwrap();
    std::fs::set_permissions(&qemu, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let mut command = aquifer();
    command.env("AQUIFER_PRELOAD", stand_in).args(["vm", "--dram", "16MiB", "--memory", "64MiB", "--accel", "tcg"]);
    command.args(["--tier", "dram:", "--balloon", "off", "--cpus", "1", "--qemu"]).arg(&qemu);
    let output = command.args(["--", "-nographic"]).output().unwrap();
    assert_eq!(output.status.code(), Some(33), "{}", stderr(&output));
    assert!(stdout(&output).ends_with("-m 64M -smp 1 -cpu max -nographic\n"), "{}", stdout(&output));
}

/// A cgroup of version 1 or 2 with a memory limit, removed on drop.
struct LimitedCgroup(std::path::PathBuf);

impl LimitedCgroup {
    /// Returns `None`, and reports a skip, if this process cannot create one.
    fn with_limit(bytes: u64) -> Option<LimitedCgroup> {
        let name = format!("aquifer-test-{}", std::process::id());
        for (root, file) in [("/sys/fs/cgroup/memory", "memory.limit_in_bytes"), ("/sys/fs/cgroup", "memory.max")] {
            let path = Path::new(root).join(&name);
            if std::fs::create_dir(&path).is_err() {
                continue;
            }
            let cgroup = LimitedCgroup(path);
            if cgroup.0.join(file).exists() && std::fs::write(cgroup.0.join(file), bytes.to_string()).is_ok() {
                return Some(cgroup);
            }
        }
        aquifer_test_support::skip("no cgroup with a memory limit can be made here (needs root)");
        None
    }

    /// Runs `aquifer run` inside the cgroup, with `dram` as its budget.
    fn run(&self, preload: &Path, dram: &str, stats: &Path) -> std::process::Output {
        let script = format!("echo $$ > {}/cgroup.procs && exec \"$@\"", self.0.display());
        let mut command = std::process::Command::new("sh");
        command.args(["-c", &script, "sh", env!("CARGO_BIN_EXE_aquifer"), "run", "--dram", dram, "--tier", "dram:"]);
        command.env("AQUIFER_PRELOAD", preload).env_remove("LD_PRELOAD").env_remove("AQUIFER_CONFIG");
        command.arg("--stats-json").arg(stats).args(["--", "true"]).output().unwrap()
    }
}

impl Drop for LimitedCgroup {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir(&self.0);
    }
}

#[test]
fn the_budget_follows_the_cgroups_limit() {
    let Some(preload) = stand_in() else { return };
    let Some(cgroup) = LimitedCgroup::with_limit(512 << 20) else { return };
    let stats = scratch("cgroup").join("stats.json");

    let refused = cgroup.run(preload, "600M", &stats);
    assert_eq!(refused.status.code(), Some(2), "{}", stderr(&refused));
    let line = stderr(&refused);
    assert!(line.starts_with("aquifer: --dram 600MiB is more than this cgroup may have (512MiB, "), "{line}");
    assert!(line.contains("; give at most 512MiB, or --dram auto, or raise the cgroup's limit"), "{line}");

    for (dram, bytes) in [("40%", (512u64 << 20) * 4 / 10 / 4096 * 4096), ("auto", (512 << 20) * 8 / 10 / 4096 * 4096)]
    {
        let output = cgroup.run(preload, dram, &stats);
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        let found: serde_json::Value = serde_json::from_slice(&std::fs::read(&stats).unwrap()).unwrap();
        assert_eq!(found["dram_budget_bytes"], bytes, "{dram}");
    }
}

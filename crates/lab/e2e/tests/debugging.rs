// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! What a debugger sees of evicted memory: its bytes, or an error, and never zeros.
//!
//! A core dump used to have zeros wherever memory was evicted, and gcore(1) silently left out resident memory next to
//! evicted memory.

use std::fs::read_dir;
use std::path::{Path, PathBuf};
use std::process::Command;

use aquifer_e2e::build::{compile_text, scratch};
use aquifer_e2e::run::{Ended, LIMIT, Running, aquifer, eventually, managed, run, start};

/// Fills each page of 96 MiB with a byte that is never zero. Writes the address to a file.
const PROGRAM: &str = r#"
    #include <signal.h>
    #include <stdio.h>
    #include <stdlib.h>
    #include <string.h>
    #include <sys/mman.h>
    #include <unistd.h>
    unsigned char *data;
    int main(int count, char **words) {
        size_t len = 96 << 20;
        data = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        madvise(data, len, MADV_DODUMP);
        for (size_t at = 0; at < len; at += 4096) memset(data + at, 1 + (at >> 12) % 250, 4096);
        madvise(data, len, MADV_DODUMP);
        FILE *file = fopen("address.new", "w");
        fprintf(file, "%p", (void *)data);
        fclose(file);
        rename("address.new", "address");
        if (count > 1 && *words[1] == 'a') abort();
        if (count > 1 && *words[1] == 's') *(volatile int *)16 = 1;
        for (;;) pause();
    }
"#;

/// Reads every page of a process in two ways, and counts the results.
const READER: &str = r#"
    #define _GNU_SOURCE
    #include <fcntl.h>
    #include <stdio.h>
    #include <stdlib.h>
    #include <sys/uio.h>
    #include <unistd.h>
    int main(int count, char **words) {
        (void)count;
        int process = atoi(words[1]), right = 0, failed = 0, wrong = 0;
        unsigned long start = strtoul(words[2], NULL, 16);
        char path[64];
        snprintf(path, sizeof path, "/proc/%d/mem", process);
        int memory = open(path, O_RDONLY);
        if (memory < 0) return 2;
        for (unsigned long page = 0; page < (96 << 20) / 4096; page++)
            for (int way = 0; way < 2; way++) {
                unsigned char bytes[4096] = {0};
                struct iovec into = {bytes, 4096}, from = {(void *)(start + page * 4096), 4096};
                ssize_t got = way ? process_vm_readv(process, &into, 1, &from, 1, 0)
                                  : pread(memory, bytes, 4096, start + page * 4096);
                if (got != 4096) { failed++; continue; }
                int same = 1;
                for (int at = 0; at < 4096; at++) same &= bytes[at] == 1 + page % 250;
                right += same; wrong += !same;
            }
        printf("%d right, %d failed, %d wrong\n", right, failed, wrong);
        return wrong || !right ? 1 : 0;
    }
"#;

const LITTLE: [&str; 4] = ["--dram", "24MiB", "--tier", "dram:"];
const MUCH: [&str; 4] = ["--dram", "256MiB", "--tier", "dram:"];
const PAGES_STEP: u64 = 512;

struct Place {
    directory: PathBuf,
    program: PathBuf,
}

fn place(name: &str) -> Option<Place> {
    let program = compile_text(name, PROGRAM)?;
    Some(Place { directory: scratch(&format!("debugged-{name}")), program })
}

impl Place {
    fn address(&self) -> u64 {
        let mut text = String::new();
        eventually("the program's start", || {
            text = std::fs::read_to_string(self.directory.join("address")).unwrap_or_default();
            !text.is_empty()
        });
        u64::from_str_radix(text.trim_start_matches("0x"), 16).expect("an address")
    }

    fn running(&self, settings: &[&str]) -> Running {
        let mut command = managed(settings, &self.program, &["wait"]);
        command.current_dir(&self.directory);
        start(command)
    }

    /// Runs the program as from a shell that allows core dumps.
    fn dumping(&self, settings: &[&str], how: &str) -> Command {
        let aquifer = aquifer();
        let mut command = Command::new("sh");
        command.args(["-c", "ulimit -c unlimited; exec \"$@\"", "sh"]).arg(aquifer.get_program()).arg("run");
        command.args(settings).arg("--").arg(&self.program).arg(how).current_dir(&self.directory);
        for (name, value) in aquifer.get_envs() {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        command
    }

    fn core(&self) -> PathBuf {
        let entries = read_dir(&self.directory).expect("the directory is there").flatten();
        let is_core = |path: &PathBuf| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("core"));
        entries.map(|entry| entry.path()).find(is_core).expect("a core dump was written")
    }

    fn gdb(&self, words: &[&str]) -> Ended {
        let mut command = Command::new("gdb");
        command.args(["-q", "-nx", "-batch", "-iex", "set debuginfod enabled off"]).args(words);
        command.current_dir(&self.directory);
        run(command, LIMIT)
    }

    /// Whether the dump contains bytes for the address: gdb shows zeros for addresses in a segment that are not in the
    /// file.
    fn has(&self, core: &Path) -> bool {
        let address = self.address();
        let listed = Command::new("readelf").args(["-lW"]).arg(core).output().expect("binutils come with cc");
        let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
        let number = |word: &str| u64::from_str_radix(word.trim_start_matches("0x"), 16).unwrap_or(0);
        let segments = listed.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
        let mut segments = segments.filter(|words| words.first() == Some(&"LOAD") && words.len() > 5);
        segments.any(|words| {
            let (start, in_file) = (number(words[2]), number(words[4]));
            start <= address && address < start + in_file
        })
    }

    /// What gdb shows for a byte of some pages: how many are right, and how many cannot be read. Any other value fails
    /// the test.
    fn look(&self, core: &Path) -> (u64, u64) {
        let (address, pages) = (self.address(), (96 << 20) / 4096);
        let looked: Vec<u64> = (0..pages).step_by(PAGES_STEP as usize).collect();
        let commands: Vec<String> = looked.iter().map(|page| format!("x/1ub {:#x}", address + page * 4096)).collect();
        let program = self.program.display().to_string();
        let core = core.display().to_string();
        let mut words = vec![program.as_str(), core.as_str(), "-ex", "backtrace"];
        commands.iter().for_each(|command| words.extend(["-ex", command]));
        let said = self.gdb(&words);
        assert!(said.stdout.contains("main ("), "stacks are there: {}{}", said.stdout, said.stderr);
        let (mut right, mut failed) = (0, 0);
        for page in looked {
            let at = format!("{:#x}", address + page * 4096);
            let value = said.stdout.lines().find(|line| line.starts_with(&at)).and_then(|line| line.split('\t').nth(1));
            // If gdb cannot read the byte, its next output continues on the same line.
            match value.and_then(|value| value.parse::<u64>().ok()) {
                Some(value) => {
                    assert_eq!(value, 1 + page % 250, "page {page} of {core}");
                    right += 1;
                }
                None => {
                    assert!(said.stderr.contains(&format!("Cannot access memory at address {at}")), "{}", said.stderr);
                    failed += 1;
                }
            }
        }
        (right, failed)
    }
}

/// Reports a skip, and returns true, if core dumps cannot be examined here.
fn lacking() -> bool {
    let pattern = std::fs::read_to_string("/proc/sys/kernel/core_pattern").unwrap_or_default();
    let why = if !pattern.starts_with("core") {
        "core dumps do not go to a file in the directory (kernel.core_pattern)"
    } else if Command::new("gdb").arg("--version").output().is_err() {
        "gdb is not installed"
    } else {
        return false;
    };
    aquifer_test_support::skip(why);
    true
}

#[test]
fn readers_from_outside_get_the_bytes_or_an_error() {
    let (Some(place), Some(reader)) = (place("outside"), compile_text("reader", READER)) else { return };
    for delivery in ["signal", "listener"] {
        let _ = std::fs::remove_file(place.directory.join("address"));
        let running = place.running(&[&LITTLE[..], &["--delivery", delivery]].concat());
        let (address, process) = (format!("{:x}", place.address()), running.program());
        let mut command = Command::new(&reader);
        command.args([process.to_string(), address]);
        let ended = run(command, LIMIT);
        assert_eq!(ended.status, Some(0), "{delivery}: {}", ended.stdout);
        let _ = Command::new("kill").arg(process.to_string()).status();
        running.wait(LIMIT).expect(128 + 15);
    }
}

#[test]
fn a_core_dump_has_the_bytes_or_says_that_it_has_not() {
    let Some(place) = place("dumped") else { return };
    if lacking() {
        return;
    }
    let pages = ((96 << 20) / 4096u64).div_ceil(PAGES_STEP);
    for (settings, how, signal, whole) in
        [(LITTLE, "abort", 6, false), (LITTLE, "segv", 11, false), (LITTLE, "wait", 6, false), (MUCH, "abort", 6, true)]
    {
        let _ = std::fs::remove_file(place.directory.join("address"));
        let running = start(place.dumping(&settings, how));
        if how == "wait" {
            // Signals from outside, where no code of the process runs. Not with SIGQUIT: shells make background jobs
            // ignore it.
            place.address();
            let _ = Command::new("kill").args(["-ABRT", &running.program().to_string()]).status();
        }
        let ended = running.wait(LIMIT);
        ended.expect(128 + signal);
        let core = place.core();
        assert_eq!(place.has(&core), whole, "{how} on {settings:?}");
        if whole {
            assert_eq!(place.look(&core), (pages, 0), "{how} on {settings:?}");
        }
        let says = ended.said().iter().any(|line| line.contains("the core dump leaves out"));
        assert_eq!(says, !whole, "{}", ended.stderr);
        let _ = std::fs::remove_file(core);
    }
}

/// Whether gdb can call a function of a program that runs without Aquifer. Reports a skip if not: gdb 13 cannot write
/// back the registers of a processor with AMX.
fn calls_functions(place: &Place) -> bool {
    let mut sleeping = Command::new("sleep").arg("100").spawn().expect("coreutils");
    let process = sleeping.id().to_string();
    let said = place.gdb(&["-p", &process, "-ex", "print ((int (*)(void))getpid)()"]);
    let _ = sleeping.kill().and_then(|()| sleeping.wait());
    let calls = said.stdout.contains(&format!("= {process}\n"));
    if !calls {
        let why = said.stderr.lines().last().unwrap_or("no error").to_owned();
        aquifer_test_support::skip_part("the call of aquifer_bring", format!("gdb cannot call functions here: {why}"));
    }
    calls
}

#[test]
fn gdb_and_gcore_get_the_bytes_or_an_error() {
    let Some(place) = place("attached") else { return };
    if lacking() {
        return;
    }
    let calls = calls_functions(&place);
    for delivery in ["signal", "listener"] {
        let _ = std::fs::remove_file(place.directory.join("address"));
        let running = place.running(&[&LITTLE[..], &["--delivery", delivery]].concat());
        let (address, process) = (place.address(), running.program().to_string());
        let call = if calls {
            format!("print ((int (*)(unsigned long, unsigned long))aquifer_bring)({address:#x}, 1 << 20)")
        } else {
            "info threads".to_owned()
        };
        let look = format!("x/1ub {:#x}", address + 4096 * 100);
        let signals = "handle SIGBUS SIGSYS nostop noprint pass";
        let said = place.gdb(&["-p", &process, "-ex", signals, "-ex", &look, "-ex", &call, "-ex", &look]);
        assert!(said.stderr.contains("Cannot access memory"), "{delivery}, before: {}{}", said.stdout, said.stderr);
        if calls {
            assert!(said.stdout.contains("= 0\n"), "{delivery}: {}{}", said.stdout, said.stderr);
            assert!(said.stdout.contains(":\t101"), "{delivery}, when brought: {}{}", said.stdout, said.stderr);
        }
        let core = place.directory.join("core.made");
        let save = format!("gcore {}", core.display());
        place.gdb(&["-p", &process, "-ex", &save]);
        let (right, failed) = place.look(&core);
        assert!(right == 0 && failed > 0, "{delivery}: {right}, {failed}");
        let _ = std::fs::remove_file(core);
        let _ = Command::new("kill").arg(&process).status();
        running.wait(LIMIT).expect(128 + 15);
    }
}

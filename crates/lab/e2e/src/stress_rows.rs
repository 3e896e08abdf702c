// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The rows of the stress suite: what runs in parallel with the torture program, named as in vendors' test reports.
//!
//! A row whose program is not installed is skipped, with a message. The rows that are compared with a native run (LTP,
//! xfstests, blktests) are in `suites.rs`.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::build::compile_text;
use crate::evicted_memory::PROLOGUE;
use crate::guest::{BARE_RIGHT, QEMU_WORDS, bare};
use crate::programs;
use crate::programs::trial::{Server, Verdict, installed, succeeded};
use crate::run::{LIMIT, managed, run};
use crate::suites;
use crate::tier_kinds::TierKind;

/// The budget of a row that sets none of its own.
const DRAM: &str = "24MiB";
/// Capacity of each donor, in MiB.
const DONOR_MIB: u64 = 2048;

/// One row.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// Its name on the command line.
    pub name: &'static str,
    /// Its title, as in vendors' test reports.
    pub title: &'static str,
    run: fn(&Turn) -> Result<Verdict, String>,
}

/// One run of a row.
#[derive(Clone, Debug)]
pub struct Turn {
    /// The row's name.
    pub name: &'static str,
    /// `--delivery`.
    pub delivery: &'static str,
    /// The kind of tier.
    pub kind: TierKind,
    /// The round's number, from which ports are derived.
    pub number: u64,
    /// How long a workload that does not end by itself runs.
    pub seconds: u64,
}

/// All rows, except the torture program, which is part of every round.
pub const ALL: [Row; 22] = [
    Row { name: "stress-ng", title: "stress-ng, memory stressors with --verify", run: application },
    Row { name: "memtester", title: "memory testers: memtester", run: memtester },
    Row { name: "ltp", title: "Linux Test Project, memory and fork tests", run: suites::ltp },
    Row { name: "xfstests", title: "xfstests", run: suites::xfstests },
    Row { name: "blktests", title: "blktests", run: suites::blktests },
    Row { name: "fio", title: "fio on a mapping, with verification", run: fio },
    Row { name: "iperf3", title: "iPerf3", run: iperf3 },
    Row { name: "netperf", title: "Netperf", run: netperf },
    Row { name: "privileges", title: "a child without privileges outgrows the budget", run: privileges },
    Row { name: "datagrams", title: "sendmmsg and recvmmsg under memory pressure", run: datagrams },
    Row { name: "guest", title: "a guest of QEMU that tests its memory", run: guest },
    Row { name: "redis", title: "application: Redis", run: application },
    Row { name: "memcached", title: "application: memcached", run: application },
    Row { name: "postgres", title: "application: PostgreSQL", run: application },
    Row { name: "sqlite", title: "application: SQLite", run: application },
    Row { name: "sort", title: "application: sort", run: application },
    Row { name: "gcc", title: "application: GCC", run: application },
    Row { name: "python", title: "application: Python", run: application },
    Row { name: "numpy", title: "application: NumPy", run: application },
    Row { name: "duckdb", title: "application: DuckDB", run: application },
    Row { name: "node", title: "application: Node.js", run: application },
    Row { name: "jvm", title: "application: a Java virtual machine", run: application },
];

impl Row {
    /// Runs the row. An error says what went wrong.
    pub fn run(&self, turn: &Turn) -> Result<Verdict, String> {
        (self.run)(turn)
    }

    /// The turn for a round: the kinds of tier take turns.
    #[must_use]
    pub fn turn(&self, number: u64, delivery: &'static str, seconds: u64) -> Turn {
        let kinds = programs::find(self.name).map_or(&TierKind::ALL[..], |program| program.kinds());
        let place = ALL.iter().position(|row| row.name == self.name).unwrap_or(0) as u64;
        let kind = kinds[((number / ALL.len() as u64 + place) % kinds.len() as u64) as usize];
        Turn { name: self.name, delivery, kind, number, seconds }
    }
}

impl Turn {
    /// Runs a program, and expects this exit status.
    fn expect(&self, program: &Path, arguments: &[&str], right: i32) -> Result<Verdict, String> {
        self.expect_of(right, |words| managed(words, program, arguments))
    }

    /// The same for a command that is made of the words for `aquifer run`.
    pub(crate) fn expect_of(&self, right: i32, command: impl FnOnce(&[&str]) -> Command) -> Result<Verdict, String> {
        let name = format!("stress-{}-{}", self.name, self.number);
        let tiers = match self.kind.make(&name, DONOR_MIB) {
            Ok(tiers) => tiers,
            Err(why) => return Ok(Verdict::Skipped(why)),
        };
        let mut words = vec!["--dram", DRAM, "--delivery", self.delivery];
        words.extend(tiers.words.iter().map(String::as_str));
        let ended = run(command(&words), LIMIT + Duration::from_secs(self.seconds * 4));
        if ended.status == Some(right) {
            return Ok(Verdict::Works(format!("over {}", self.kind.name())));
        }
        succeeded(&ended).and_then(|()| Err(format!("exit status 0 instead of {right}")))
    }
}

/// The path of a program, or a return with a skip if it is not installed.
macro_rules! program {
    ($names:expr) => {
        match installed($names) {
            Ok(program) => program,
            Err(skipped) => return Ok(skipped),
        }
    };
}

fn application(turn: &Turn) -> Result<Verdict, String> {
    let program = programs::find(turn.name).ok_or("it is not among the programs")?;
    program.judge_with(false, turn.kind, turn.delivery)
}

fn memtester(turn: &Turn) -> Result<Verdict, String> {
    let program = program!(&["memtester"]);
    turn.expect(&program, &["20M", "1"], 0)
}

fn fio(turn: &Turn) -> Result<Verdict, String> {
    let program = program!(&["fio"]);
    let directory = crate::build::scratch(&format!("stress-fio-{}", turn.number));
    let file = format!("--filename={}", directory.join("file").display());
    let words = [
        "--name=mapping",
        &file,
        "--ioengine=mmap",
        "--size=48m",
        "--rw=randrw",
        "--bs=16k",
        "--iomem=mmap",
        "--verify=crc32c",
        "--verify_fatal=1",
        // Otherwise it leaves a file in the current directory when it fails.
        "--verify_state_save=0",
    ];
    let ended = turn.expect(&program, &words, 0);
    let _ = std::fs::remove_dir_all(directory);
    ended
}

/// A port that only this round's servers use.
fn port(turn: &Turn) -> String {
    (20_000 + turn.number % 10_000).to_string()
}

fn iperf3(turn: &Turn) -> Result<Verdict, String> {
    let program = program!(&["iperf3"]);
    let mut server = Command::new(&program);
    let port = port(turn);
    server.args(["-s", "-1", "-B", "127.0.0.1", "-p", &port]);
    with_server(server, || turn.expect(&program, &["-c", "127.0.0.1", "-p", &port, "-t", "2", "-P", "4"], 0))
}

fn netperf(turn: &Turn) -> Result<Verdict, String> {
    let (program, netserver) = (program!(&["netperf"]), program!(&["netserver"]));
    let mut server = Command::new(netserver);
    let port = port(turn);
    server.args(["-D", "-L", "127.0.0.1", "-p", &port]);
    with_server(server, || turn.expect(&program, &["-H", "127.0.0.1", "-p", &port, "-l", "2"], 0))
}

/// Starts a server, and runs a client after a pause for the server to listen. A client that fails is retried, because
/// it may have been too early.
fn with_server(server: Command, client: impl Fn() -> Result<Verdict, String>) -> Result<Verdict, String> {
    let _server = Server::start(server);
    let mut ended = Err("it was never started".to_owned());
    for _ in 0..3 {
        std::thread::sleep(Duration::from_millis(500));
        ended = client();
        if ended.is_ok() {
            break;
        }
    }
    ended
}

fn compiled(turn: &Turn, name: &str, functions: &str, body: &str) -> Result<Verdict, String> {
    let source = format!("{PROLOGUE}\n{functions}\nint main(void) {{\nalarm(250);\n{body}\nreturn 0;\n}}\n");
    match compile_text(name, &source) {
        Some(program) => turn.expect(&program, &[], 0),
        None => Ok(Verdict::Skipped("there is no C compiler".to_owned())),
    }
}

fn privileges(turn: &Turn) -> Result<Verdict, String> {
    const BODY: &str = r#"
        unsigned char *start = evicted_filled(40 << 20, 3);
        pid_t child = fork();
        must(child >= 0, "fork");
        if (child == 0) {
            if (geteuid() == 0) must(setgid(65534) == 0 && setuid(65534) == 0, "setuid");
            all(start, 40 << 20, 3, "the child's copy");
            memset(start, 5, 40 << 20); press();
            all(start, 40 << 20, 5, "the child's writes");
            _exit(0);
        }
        int status;
        must(waitpid(child, &status, 0) == child && status == 0, "the child");
        press();
        all(start, 40 << 20, 3, "the parent");"#;
    compiled(turn, "stress-privileges", "", BODY)
}

fn datagrams(turn: &Turn) -> Result<Verdict, String> {
    const BODY: &str = r#"
        int ends[2], large = 8 << 20;
        must(socketpair(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK, 0, ends) == 0, "socketpair");
        setsockopt(ends[0], SOL_SOCKET, SO_SNDBUF, &large, sizeof large);
        for (int turn = 0; turn < 40; turn++) {
            static struct mmsghdr sent[MANY], found[MANY];
            static struct iovec out[MANY], in[MANY];
            unsigned char *from = evicted_filled((size_t)MANY << 16, turn + 1), *to = evicted((size_t)MANY << 16);
            for (int at = 0; at < MANY; at++) {
                out[at] = (struct iovec){from + ((size_t)at << 16), 1000};
                in[at] = (struct iovec){to + ((size_t)at << 16), 1000};
                sent[at].msg_hdr = (struct msghdr){.msg_iov = out + at, .msg_iovlen = 1};
                found[at].msg_hdr = (struct msghdr){.msg_iov = in + at, .msg_iovlen = 1};
            }
            for (int done = 0, came = 0; came < MANY;) {
                int more = done < MANY ? sendmmsg(ends[0], sent + done, MANY - done, 0) : 0;
                must(more >= 0 || errno == EAGAIN, "sendmmsg");
                done += more > 0 ? more : 0;
                more = recvmmsg(ends[1], found + came, done - came, 0, NULL);
                must(more > 0 || errno == EAGAIN, "recvmmsg");
                for (int at = came; at < came + (more > 0 ? more : 0); at++)
                    must(found[at].msg_len == 1000, "a whole message");
                came += more > 0 ? more : 0;
                must(came <= done, "no more than was sent");
            }
            for (int at = 0; at < MANY; at++) all(to + ((size_t)at << 16), 1000, turn + 1, "a message");
            free(from), free(to);
        }"#;
    compiled(turn, "stress-datagrams", "enum { MANY = 48 };", BODY)
}

fn guest(turn: &Turn) -> Result<Verdict, String> {
    let program = program!(&["qemu-system-x86_64"]);
    let Some(firmware) = bare() else { return Ok(Verdict::Skipped("there is no C compiler".to_owned())) };
    let firmware = firmware.display().to_string();
    let words = ["-accel", "tcg", "-m", "96M", "-device", "isa-debug-exit,iobase=0xf4,iosize=4", "-bios", &firmware];
    turn.expect(&program, &[&QEMU_WORDS[..], &words].concat(), BARE_RIGHT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_meets_every_kind_of_tier_it_can_have() {
        for row in ALL {
            let met: Vec<_> =
                (0..(ALL.len() * TierKind::ALL.len()) as u64).map(|number| row.turn(number, "auto", 1).kind).collect();
            let kinds = programs::find(row.name).map_or(&TierKind::ALL[..], |program| program.kinds());
            assert!(kinds.iter().all(|kind| met.contains(kind)), "{}", row.name);
        }
    }

    #[test]
    fn every_application_is_one_of_the_programs() {
        for row in ALL.iter().filter(|row| row.title.starts_with("application")) {
            assert!(programs::find(row.name).is_some(), "{}", row.name);
        }
    }
}

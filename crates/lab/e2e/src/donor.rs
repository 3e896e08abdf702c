// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! A donor in a separate process, killed on drop, and the operations that tests apply to it.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use serde_json::Value;

use crate::build::scratch;
use crate::run::{LIMIT, aquifer, run};

/// The XOR mask of a corrupted byte, and the distance between corrupted places.
const DAMAGE: u8 = 0x55;
const DAMAGE_EVERY: usize = 4096;
/// The security flags for plain text, for a donor and for clients that query it.
pub const PLAIN: [&str; 2] = ["--security", "plain"];

/// A running donor.
#[derive(Debug)]
pub struct Donor {
    /// Its process.
    pub child: Child,
    /// Where it listens, as in a tier specification.
    pub address: String,
    /// The JSON object that it printed when it was ready.
    pub said: Value,
    /// Its borrowers' security settings: as options of a tier, and as flags.
    options: String,
    flags: Vec<String>,
}

impl Donor {
    /// Starts a donor on loopback, in plain text, with these additional arguments.
    #[must_use]
    pub fn start(words: &[&str]) -> Donor {
        let mut command = command("127.0.0.1:0");
        command.args(PLAIN).args(words);
        Donor::run(command).in_plain_text()
    }

    /// Starts a donor on loopback that lends over TLS, with the certificates that `docs/donor.md` creates. `Err` says
    /// why that is not possible.
    pub fn start_secure(name: &str, words: &[&str]) -> Result<Donor, String> {
        let directory = certificates(name)?;
        let file = |name: &str| directory.join(name).to_str().expect("a path of ours").to_owned();
        let flags = |cert: &str, key: &str| {
            ["--tls-cert", &file(cert), "--tls-key", &file(key), "--tls-ca", &file("ca.pem")].map(String::from)
        };
        let (cert, key, ca) = (file("borrower.pem"), file("borrower.key"), file("ca.pem"));
        let mut command = command("127.0.0.1:0");
        command.args(flags("donor.pem", "donor.key")).args(words);
        let options = format!(",cert={cert},key={key},ca={ca}");
        Ok(Donor::run(command).with_security(&options, &flags("borrower.pem", "borrower.key")))
    }

    /// Starts a donor that shares its memory with programs on this machine.
    #[must_use]
    pub fn start_sharing(name: &str, words: &[&str]) -> Donor {
        // A socket path is limited to 107 bytes.
        let path = std::env::temp_dir().join(format!("aquifer-{name}-{}.sock", std::process::id()));
        let mut command = command(format!("unix:{}", path.display()));
        command.args(words);
        Donor::run(command)
    }

    /// Starts the donor of a [`command`], on any host. Panics unless it prints where it listens.
    #[must_use]
    pub fn run(mut command: Command) -> Donor {
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().expect("aquifer can be started");
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().expect("piped")).read_line(&mut line).expect("it says where");
        let said: Value = serde_json::from_str(&line).unwrap_or_else(|_| panic!("one object, not '{line}'"));
        assert_eq!(said["pid"], child.id());
        let address = said["address"].as_str().expect("an address").to_owned();
        Donor { child, address, said, options: String::new(), flags: Vec::new() }
    }

    /// Makes borrowers ask for plain text explicitly.
    #[must_use]
    pub fn in_plain_text(self) -> Donor {
        self.with_security(",security=plain", &PLAIN)
    }

    /// Sets the borrowers' security settings: options of a tier, with a leading comma, and flags.
    #[must_use]
    pub fn with_security(mut self, options: &str, flags: &[impl AsRef<str>]) -> Donor {
        self.options = options.to_owned();
        self.flags = flags.iter().map(|flag| flag.as_ref().to_owned()).collect();
        self
    }

    /// The tier specification of this donor alone, with more options.
    #[must_use]
    pub fn tier(&self, options: &str) -> String {
        format!("donor:{}{}{options}", self.address, self.options)
    }

    /// The output of `aquifer donor status`.
    #[must_use]
    pub fn status(&self) -> Value {
        let mut command = aquifer();
        command.args(["donor", "status", &self.address, "--json"]).args(&self.flags);
        serde_json::from_str(&run(command, LIMIT).expect(0).stdout).expect("one object")
    }

    /// One figure of the status.
    #[must_use]
    pub fn number(&self, figure: &str) -> u64 {
        self.status()[figure].as_u64().unwrap_or_else(|| panic!("'{figure}' is a number"))
    }

    /// Sends a signal, named as for kill(1): `-TERM`.
    pub fn signal(&self, signal: &str) {
        let sent = Command::new("kill").arg(signal).arg(self.child.id().to_string()).status();
        assert!(sent.is_ok_and(|status| status.success()));
    }

    /// The donor's memory, and its writable ranges. Returns `None`, and reports a skip, if another process's memory
    /// cannot be accessed.
    #[must_use]
    pub fn memory(&self) -> Option<(File, Vec<(u64, u64)>)> {
        let process = self.child.id();
        let maps = std::fs::read_to_string(format!("/proc/{process}/maps")).expect("our child");
        let range = |line: &str| {
            let mut words = line.split_whitespace();
            let (start, end) = words.next()?.split_once('-')?;
            let number = |text| u64::from_str_radix(text, 16).ok();
            words.next()?.starts_with("rw").then_some((number(start)?, number(end)?))
        };
        match std::fs::OpenOptions::new().read(true).write(true).open(format!("/proc/{process}/mem")) {
            Ok(memory) => Some((memory, maps.lines().filter_map(range).collect())),
            Err(error) => {
                aquifer_test_support::skip(format!("other processes' memory cannot be reached ({error})"));
                None
            }
        }
    }

    /// How many times these bytes occur in the donor's memory. Returns `None`, and reports a skip, if another process's
    /// memory cannot be accessed.
    #[must_use]
    pub fn count(&self, bytes: &[u8]) -> Option<usize> {
        let (memory, ranges) = self.memory()?;
        Some(ranges.iter().map(|range| count(&memory, *range, bytes)).sum())
    }

    /// Like [`Donor::count`], in the memory that it lends alone, lent or not.
    #[must_use]
    pub fn count_lendable(&self, bytes: &[u8]) -> Option<usize> {
        let (memory, ranges) = self.memory()?;
        let largest = ranges.into_iter().max_by_key(|(start, end)| end - start).expect("it has memory");
        Some(count(&memory, largest, bytes))
    }

    /// Changes some bytes of each page that it lends. Returns false if that is not permitted.
    #[must_use]
    pub fn corrupt(&self) -> bool {
        let Some((memory, ranges)) = self.memory() else { return false };
        let (start, end) = ranges.into_iter().max_by_key(|(start, end)| end - start).expect("it has memory");
        (start..end).step_by(DAMAGE_EVERY).all(|page| {
            let mut bytes = [0; 8];
            memory.read_exact_at(&mut bytes, page + 64).is_ok()
                && memory.write_all_at(&bytes.map(|byte| byte ^ DAMAGE), page + 64).is_ok()
        })
    }
}

/// How many times these bytes occur in a range of a process's memory. See proc_pid_mem(5).
fn count(memory: &File, (start, end): (u64, u64), bytes: &[u8]) -> usize {
    let (mut count, mut piece, zeros) = (0, vec![0; 1 << 20], vec![0; 1 << 20]);
    for at in (start..end).step_by(piece.len()) {
        let wanted = piece.len().min((end - at) as usize);
        // Unreadable parts are skipped.
        let found = memory.read_at(&mut piece[..wanted], at).unwrap_or(0);
        // Most of it has never been written, and the search is slow.
        if piece[..found] != zeros[..found] {
            count += piece[..found].windows(bytes.len()).filter(|window| *window == bytes).count();
        }
    }
    count
}

impl Drop for Donor {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        // A killed donor does not remove its socket.
        let _ = self.address.strip_prefix("unix:").map(std::fs::remove_file);
    }
}

/// Creates the certificates with the commands in `docs/donor.md`. `Err` says why that is not possible.
fn certificates(name: &str) -> Result<PathBuf, String> {
    if !Command::new("openssl").arg("version").output().is_ok_and(|output| output.status.success()) {
        return Err("there is no openssl".to_owned());
    }
    let directory = scratch(&format!("{name}-certificates"));
    let text = include_str!("../../../../docs/donor.md");
    let (_, rest) = text.split_once("```sh certificates\n").expect("the page has the commands");
    let (commands, _) = rest.split_once("```").expect("they end");
    let script = format!("set -e\n{}", commands.replace("10.0.0.2", "127.0.0.1"));
    let made = Command::new("sh").args(["-c", &script]).current_dir(&directory).output().expect("sh can be started");
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    Ok(directory)
}

/// The command `aquifer donor` with this listen address; the caller adds arguments.
#[must_use]
pub fn command(listen: impl AsRef<OsStr>) -> Command {
    let mut command = aquifer();
    command.args(["donor", "--json", "--listen"]).arg(listen);
    command
}

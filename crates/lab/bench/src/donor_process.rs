// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! A donor of the bench: `aquifer donor`, running next to the program that borrows from it, until it is dropped.
//!
//! If setpriv(1) is installed, the donor dies with the bench, however the bench ends.

use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};
use serde_json::Value;

use crate::failure::BenchFailure;
use crate::process::find_program;

/// The smallest amount that a donor lends.
const SLAB_BYTES: u64 = 2 << 20;
/// Time limit for a donor to end: it first wipes the memory that it lent.
const END_MAX: Duration = Duration::from_secs(30);
const LOOK_AGAIN: Duration = Duration::from_millis(10);

/// The IP address of a donor on this machine.
pub const LOOPBACK: &str = "127.0.0.1";

/// The address that a donor listens on, and the security options of both sides.
pub struct Way {
    pub listen: String,
    pub donor_words: Vec<String>,
    /// The options that the borrower appends to the address.
    pub options: String,
}

impl Way {
    /// By TCP in plain text, at an IP address.
    pub fn plain(address: &str) -> Way {
        Way {
            listen: format!("{address}:0"),
            donor_words: vec!["--security".into(), "plain".into()],
            options: ",security=plain".into(),
        }
    }

    /// Over shared memory.
    pub fn shared(socket: &Path) -> Way {
        Way { listen: format!("unix:{}", socket.display()), donor_words: Vec::new(), options: String::new() }
    }
}

/// A running `aquifer donor`, which is ended when this is dropped.
pub struct DonorProcess {
    child: Child,
    /// Its address, in the form of `--tier donor:`.
    pub address: String,
}

impl DonorProcess {
    /// Starts a donor with room for `bytes`. `words` come first: a wrapper such as taskset(1).
    pub fn start(aquifer: &Path, words: &[String], way: &Way, bytes: u64) -> Result<DonorProcess, BenchFailure> {
        let mut line: Vec<String> = Vec::new();
        if let Some(setpriv) = find_program("setpriv") {
            line.extend([setpriv.display().to_string(), "--pdeathsig".into(), "KILL".into()]);
        }
        line.extend(words.iter().cloned());
        line.extend([
            aquifer.display().to_string(),
            "donor".into(),
            "--json".into(),
            "--listen".into(),
            way.listen.clone(),
        ]);
        line.extend(["--size".into(), bytes.next_multiple_of(SLAB_BYTES).to_string()]);
        line.extend(way.donor_words.iter().cloned());
        let mut command = Command::new(&line[0]);
        command.args(&line[1..]).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
        let child = command.spawn().map_err(|error| BenchFailure::io("cannot start a donor", &error))?;
        let mut donor = DonorProcess { child, address: String::new() };
        let mut said = String::new();
        // It prints its address, or ends with a reason.
        let _ = BufReader::new(donor.child.stdout.as_mut().expect("piped")).read_line(&mut said);
        let reported: Option<Value> = serde_json::from_str(&said).ok();
        match reported.as_ref().and_then(|reported| reported.get("address")).and_then(Value::as_str) {
            Some(address) => donor.address = address.to_string(),
            None => {
                let mut reason = String::new();
                let _ = donor.child.stderr.as_mut().expect("piped").read_to_string(&mut reason);
                let cause = format!("there is no donor: {}", reason.trim().replace(char::is_control, " "));
                return Err(BenchFailure::trouble(cause, ""));
            }
        }
        Ok(donor)
    }

    fn has_ended(&mut self) -> bool {
        !matches!(self.child.try_wait(), Ok(None))
    }
}

impl Drop for DonorProcess {
    fn drop(&mut self) {
        let group = Pid::from_child(&self.child);
        for signal in [Signal::TERM, Signal::KILL] {
            let begin = Instant::now();
            if self.has_ended() {
                return;
            }
            let _ = kill_process_group(group, signal);
            while !self.has_ended() && begin.elapsed() < END_MAX {
                thread::sleep(LOOK_AGAIN);
            }
        }
    }
}

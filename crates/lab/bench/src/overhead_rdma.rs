// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Makes the runs that show the cost of an RDMA read from a donor beyond the device: `aquifer donor --rdma` and
//! `aquifer doctor --tier` at the same time on one machine, and the same device's own time for an RDMA READ of the same
//! size, without Aquifer (`ib_read_lat` of perftest).
//!
//! The cost beyond the device is the queue pair, the posting, the polling, and the copy between bounce buffer and
//! frame. Whether the machine has what the cases need is checked first; if not, they are skipped with a reason.

use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use serde_json::Value;

use crate::donor_process::{LOOPBACK, Way};
use crate::failure::BenchFailure;
use crate::overhead::Case;
use crate::overhead_run::{OverheadBench, TIER_TIMEOUT};
use crate::process::{self, find_program};

const PERFTEST: &str = "ib_read_lat";
/// How many times a client tries, and at which interval: its server does not announce that it listens.
const TRIES_MAX: u32 = 20;
const TRY_AGAIN: Duration = Duration::from_millis(250);
const ITERATIONS: &str = "2000";

/// The other end of `ib_read_lat`, which ends with its client, or when it is dropped.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl OverheadBench<'_> {
    /// Why this machine cannot show the cost of an RDMA read, if it cannot.
    pub(crate) fn no_rdma(&self) -> Result<Option<String>, BenchFailure> {
        match self.rdma_device() {
            Ok(device) => Ok(device.err()),
            Err(failure @ BenchFailure::Interrupted(_)) => Err(failure),
            Err(failure) => Ok(Some(failure.to_string())),
        }
    }

    /// The device as `aquifer doctor` names it, or what is missing.
    fn rdma_device(&self) -> Result<Result<String, String>, BenchFailure> {
        let mut command = Command::new(self.aquifer);
        command.args(["doctor", "--json"]);
        let finished = process::run(command, TIER_TIMEOUT, self.interrupt)?;
        let device = device_of(&finished.stdout);
        Ok(device.and_then(|device| match find_program(PERFTEST) {
            Some(_) => Ok(device),
            None => Err(format!("there is no {PERFTEST}; install perftest")),
        }))
    }

    /// The value of a case, and a note about it.
    pub(crate) fn rdma(&self, case: &Case) -> Result<(f64, String), BenchFailure> {
        let device = self.rdma_device()?.map_err(|reason| BenchFailure::trouble(reason, ""))?;
        let Way { listen, mut donor_words, options } = Way::plain(LOOPBACK);
        donor_words.extend(["--rdma".into(), device.clone()]);
        let way = Way { listen, donor_words, options: format!("{options},device={device}") };
        // Before and after, as in `overhead_donor.rs`. On all CPUs, because the donor's CPU takes no part in a read.
        let before = self.device_read_us(&device, case.block_bytes)?;
        let read = self.read_us(case, &way, "rdma:", "read_us_p50", None)?;
        let raw = (before + self.device_read_us(&device, case.block_bytes)?) / 2.0;
        Ok((read - raw, format!("a read {read:.1} us, the device's own {raw:.1}, on {device}")))
    }

    /// The median time of an RDMA READ from this machine to itself.
    fn device_read_us(&self, device: &str, bytes: u64) -> Result<f64, BenchFailure> {
        let words = ["-d", device, "-s", &bytes.to_string(), "-n", ITERATIONS, "-F"].map(str::to_owned);
        let mut server = Command::new(PERFTEST);
        server.args(&words).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let server = server.spawn().map_err(|error| BenchFailure::io(format!("cannot start {PERFTEST}"), &error))?;
        let _server = Server(server);
        let mut complaint = String::new();
        for _ in 0..TRIES_MAX {
            thread::sleep(TRY_AGAIN);
            let mut client = Command::new(PERFTEST);
            client.args(&words).arg("127.0.0.1");
            let finished = process::run(client, TIER_TIMEOUT, self.interrupt)?;
            if let Some(us) = typical_us(&finished.stdout, bytes) {
                return Ok(us);
            }
            complaint = finished.complaint();
        }
        Err(BenchFailure::trouble(format!("{PERFTEST} did not report the time of a read: {complaint}"), ""))
    }
}

/// The device in the output of `aquifer doctor --json`, whose detail begins with its name; or why there is none.
fn device_of(lines: &str) -> Result<String, String> {
    let mut lines = lines.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let rdma = lines.find(|line| line["name"] == "rdma").ok_or("`aquifer doctor` does not report RDMA")?;
    let detail = rdma["detail"].as_str().unwrap_or_default();
    match (rdma["found"].as_bool(), detail.split_whitespace().next()) {
        (Some(true), Some(device)) => Ok(device.to_owned()),
        _ => Err(detail.to_owned()),
    }
}

/// The median in the output of `ib_read_lat`, whose columns are size, iterations, minimum, maximum, typical.
fn typical_us(text: &str, bytes: u64) -> Option<f64> {
    let size = bytes.to_string();
    let line = text.lines().find(|line| line.split_whitespace().next() == Some(&size))?;
    line.split_whitespace().nth(4)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_device_is_found_or_it_is_said_why_not() {
        let found = "{\"name\":\"rdma\",\"found\":true,\"detail\":\"rxe0 port 1: RoCE v2 at 10.0.0.1\"}";
        assert_eq!(device_of(&format!("{{\"name\":\"userfaultfd\",\"found\":true}}\n{found}\n")), Ok("rxe0".into()));
        let none = found.replace("true", "false").replace("rxe0 port 1", "there is no RDMA device");
        assert!(device_of(&none).unwrap_err().contains("no RDMA device"));
        assert!(device_of("").is_err());
    }

    #[test]
    fn the_typical_time_is_the_fifth_word() {
        let text = " #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]\n \
                    4096    2000          1.70           9.50         1.75     \t       1.80\n";
        assert_eq!(typical_us(text, 4096), Some(1.75));
        assert_eq!(typical_us(text, 131_072), None);
        assert_eq!(typical_us("Couldn't connect to 127.0.0.1:18515\n", 4096), None);
    }
}

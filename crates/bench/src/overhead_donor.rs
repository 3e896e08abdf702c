// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Makes the runs that show what a read from a donor costs: `aquifer donor` and `aquifer doctor --tier` beside each
//! other, and a round trip of the same sizes by nobody of ours (`ping_pong.rs`). By RDMA: `overhead_rdma.rs`.
//!
//! Latencies on one CPU: there the two ends wake each other always in the same way, and what is left is what both
//! compute. Throughput on as many as there are.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::failure::BenchFailure;
use crate::lender::Lender;
use crate::overhead::{Case, TLS_THROUGHPUT};
use crate::overhead_run::{OverheadBench, TIER_TIMEOUT, first_cpu_of_ours, on_cpu, read_us_of};
use crate::ping_pong;
use crate::process;
use crate::undo::{self, SERVER_KIND, Undo, UndoList};

/// What a donor listens at, and what both sides say about security.
pub(crate) struct Way {
    pub(crate) listen: String,
    pub(crate) donor_words: Vec<String>,
    pub(crate) options: String,
}

/// The commands of `docs/donor.md`, for this machine.
const CERTIFICATES: &str = "set -e
openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=bench -keyout ca.key -out ca.pem
printf 'subjectAltName = IP:127.0.0.1\n' > donor.ext
printf 'subjectAltName = DNS:borrower\n' > borrower.ext
for name in donor borrower; do
  openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN=$name -keyout $name.key -out $name.csr
  openssl x509 -req -in $name.csr -CA ca.pem -CAkey ca.key -set_serial 0x$(openssl rand -hex 16) -days 2 \
    -extfile $name.ext -out $name.pem
done";

impl OverheadBench<'_> {
    /// The value of a case, and what to say about it.
    pub(crate) fn donor(&self, case: &Case) -> Result<(f64, String), BenchFailure> {
        if case.is_rdma() {
            return self.rdma(case);
        }
        let mut files = UndoList::default();
        let directory = self.settings.dir.join(undo::name(self.token, SERVER_KIND));
        files.push(Undo::RemoveTree(directory.clone()));
        fs::create_dir_all(&directory)
            .map_err(|error| BenchFailure::io(format!("cannot make {}", directory.display()), &error))?;
        if case.name == TLS_THROUGHPUT {
            let plain = self.read_us(case, &plain(), "", "read_us_p50", None)?;
            let tls = self.read_us(case, &self.tls(&directory)?, "", "read_us_p50", None)?;
            let rate = |us: f64| case.block_bytes as f64 / us / 1e3;
            return Ok((plain / tls, format!("{:.2} GB/s over TLS, {:.2} in plain text", rate(tls), rate(plain))));
        }
        let way = match case.name {
            "shm-4KiB" => {
                let listen = format!("unix:{}", directory.join("socket").display());
                Way { listen, donor_words: Vec::new(), options: String::new() }
            }
            "tls-4KiB" => self.tls(&directory)?,
            _ => plain(),
        };
        let cpu = first_cpu_of_ours()?;
        // Before and after: a machine that changes its mood in between is seen.
        let before = ping_pong::round_trip_us(cpu, case.block_bytes as usize)?;
        let read = self.read_us(case, &way, "", "read_us_p50", Some(cpu))?;
        let raw = (before + ping_pong::round_trip_us(cpu, case.block_bytes as usize)?) / 2.0;
        Ok((read - raw, format!("a read {read:.1} us, the round trip alone {raw:.1}")))
    }

    /// The time of a read of the case's size, as the tier's owner measures it. `by` stands before the address.
    pub(crate) fn read_us(
        &self,
        case: &Case,
        way: &Way,
        by: &str,
        which: &str,
        cpu: Option<u32>,
    ) -> Result<f64, BenchFailure> {
        let words = cpu.map_or_else(Vec::new, |cpu| vec!["taskset".into(), "--cpu-list".into(), cpu.to_string()]);
        let lender = Lender::start(self.aquifer, &words, &way.listen, case.tier_bytes, &way.donor_words)?;
        let mut command = cpu.map_or_else(|| Command::new(self.aquifer), |cpu| on_cpu(cpu, self.aquifer));
        command.args(["doctor", "--json", "--tier"]).arg(format!("donor:{by}{}{}", lender.address, way.options));
        let finished = process::run(command, TIER_TIMEOUT, self.interrupt)?;
        if !finished.status.success() {
            return Err(BenchFailure::trouble(format!("the tier cannot be measured: {}", finished.complaint()), ""));
        }
        read_us_of(&finished.stdout, case.block_bytes, which)
            .ok_or_else(|| BenchFailure::trouble("`aquifer doctor --tier` did not tell the time of a read", ""))
    }

    /// With certificates for this once.
    fn tls(&self, directory: &Path) -> Result<Way, BenchFailure> {
        let mut command = Command::new("sh");
        command.args(["-c", CERTIFICATES]).current_dir(directory);
        let finished = process::run(command, TIER_TIMEOUT, self.interrupt)?;
        if !finished.status.success() {
            let cause = format!("no certificates can be made: {}", finished.complaint());
            return Err(BenchFailure::trouble(cause, "install openssl"));
        }
        let file = |name: &str| -> PathBuf { directory.join(name) };
        let words = [("--tls-cert", "donor.pem"), ("--tls-key", "donor.key"), ("--tls-ca", "ca.pem")];
        let donor_words = words.iter().flat_map(|(flag, name)| [flag.to_string(), file(name).display().to_string()]);
        let (cert, key, ca) = (file("borrower.pem"), file("borrower.key"), file("ca.pem"));
        Ok(Way {
            listen: plain().listen,
            donor_words: donor_words.collect(),
            options: format!(",cert={},key={},ca={}", cert.display(), key.display(), ca.display()),
        })
    }
}

pub(crate) fn plain() -> Way {
    Way {
        listen: "127.0.0.1:0".into(),
        donor_words: vec!["--security".into(), "plain".into()],
        options: ",security=plain".into(),
    }
}

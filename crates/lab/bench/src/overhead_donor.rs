// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Makes the runs that show the cost of a read from a donor: `aquifer donor` and `aquifer doctor --tier` at the same
//! time, and a round trip of the same sizes without Aquifer (`ping_pong.rs`). With RDMA: `overhead_rdma.rs`.
//!
//! Latencies are measured on one CPU: there the two ends always wake each other in the same way, and the difference is
//! the computation of both. Throughput is measured on all CPUs.

use std::fs;
use std::process::Command;

use crate::certificates;
use crate::donor_process::{DonorProcess, LOOPBACK, Way};
use crate::failure::BenchFailure;
use crate::order;
use crate::overhead::{Case, TLS_THROUGHPUT};
use crate::overhead_run::{OverheadBench, TIER_TIMEOUT, first_cpu_of_ours, on_cpu, read_us_of};
use crate::ping_pong;
use crate::process;
use crate::undo::{self, SERVER_KIND, Undo, UndoList};

impl OverheadBench<'_> {
    /// The value of a case in this round, and a note about it.
    pub(crate) fn donor(&self, case: &Case, round: u32) -> Result<(f64, String), BenchFailure> {
        if case.is_rdma() {
            return self.rdma(case);
        }
        let mut files = UndoList::default();
        let directory = self.settings.dir.join(undo::name(self.token, SERVER_KIND));
        files.push(Undo::RemoveTree(directory.clone()));
        fs::create_dir_all(&directory)
            .map_err(|error| BenchFailure::io(format!("cannot make {}", directory.display()), &error))?;
        if case.name == TLS_THROUGHPUT {
            let by_tls = certificates::tls(&directory, LOOPBACK, self.interrupt)?;
            let read_us = |way: &Way| self.read_us(case, way, "", "read_us_p50", None);
            let (plain, tls) = order::both(round, || read_us(&Way::plain(LOOPBACK)), || read_us(&by_tls))?;
            let rate = |us: f64| case.block_bytes as f64 / us / 1e3;
            return Ok((plain / tls, format!("{:.2} GB/s over TLS, {:.2} in plain text", rate(tls), rate(plain))));
        }
        let way = match case.name {
            "shm-4KiB" => Way::shared(&directory.join("socket")),
            "tls-4KiB" => certificates::tls(&directory, LOOPBACK, self.interrupt)?,
            _ => Way::plain(LOOPBACK),
        };
        let cpu = first_cpu_of_ours()?;
        // Before and after, to detect a change in the machine's speed in between.
        let before = ping_pong::round_trip_us(cpu, case.block_bytes as usize)?;
        let read = self.read_us(case, &way, "", "read_us_p50", Some(cpu))?;
        let raw = (before + ping_pong::round_trip_us(cpu, case.block_bytes as usize)?) / 2.0;
        Ok((read - raw, format!("a read {read:.1} us, the round trip alone {raw:.1}")))
    }

    /// The time of a read of the case's size, as measured by the tier's own process. `by` is put before the address.
    pub(crate) fn read_us(
        &self,
        case: &Case,
        way: &Way,
        by: &str,
        which: &str,
        cpu: Option<u32>,
    ) -> Result<f64, BenchFailure> {
        let words = cpu.map_or_else(Vec::new, |cpu| vec!["taskset".into(), "--cpu-list".into(), cpu.to_string()]);
        let donor = DonorProcess::start(self.aquifer, &words, way, case.tier_bytes)?;
        let mut command = cpu.map_or_else(|| Command::new(self.aquifer), |cpu| on_cpu(cpu, self.aquifer));
        command.args(["doctor", "--json", "--tier"]).arg(format!("donor:{by}{}{}", donor.address, way.options));
        let finished = process::run(command, TIER_TIMEOUT, self.interrupt)?;
        if !finished.status.success() {
            return Err(BenchFailure::trouble(format!("the tier cannot be measured: {}", finished.complaint()), ""));
        }
        read_us_of(&finished.stdout, case.block_bytes, which)
            .ok_or_else(|| BenchFailure::trouble("`aquifer doctor --tier` did not report the time of a read", ""))
    }
}

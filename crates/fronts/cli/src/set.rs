// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! `aquifer set`: changes the budget of a running program.
//!
//! The budget is a word in the ledger that the processes of a tree share (`pager/src/ledger.rs`). Each process is
//! woken by a change and adjusts to its new share (`pager/src/share.rs`); this command sends nothing to any process.

use std::process;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use aquifer_config::{LEDGER_BUDGET_MAX_WORD, LEDGER_BUDGET_WORD, LEDGER_EVENTS_WORD, LEDGER_GIVEN_WORD};
use aquifer_core::units::{ByteSize, PAGE_BYTES};
use aquifer_sys::shared_segment::{SharedSegment, wake_all};
use serde::Serialize;

use crate::exit::{ExitCode, Failure, say};
use crate::run::{Allowed, Dram};
use crate::{instances, output, stat};

/// How long to wait for a smaller budget to take effect. In this time, a disk of 200 MB/s takes 2 GB.
const GIVEN_BACK_WITHIN: Duration = Duration::from_secs(10);
/// The pause between two checks.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// Change the budget of a running program
///
/// The budget is shared by the program and its descendants. A larger budget takes effect at once. A smaller one takes
/// effect as pages are evicted to the tier. In a program that has always fitted its budget, a smaller one takes effect
/// at its next allocation.
#[derive(Clone, Debug, clap::Args)]
#[command(after_long_help = "\
Examples:
  aquifer set 4711 --dram 8GiB    the program, by its process id or its launcher's
  aquifer set 4711 --dram 25%     of the memory that this process may use
  aquifer stat 4711               what it has now, and what would help")]
pub struct SetArgs {
    /// Process id of the program or of its launcher
    #[arg(value_name = "PID", value_parser = stat::process_id)]
    pid: u32,

    /// Local DRAM for the program's memory, at least 16MiB; as for 'aquifer run'
    #[arg(long, value_name = "SIZE")]
    dram: Dram,

    /// One JSON object with the budgets, in bytes
    #[arg(long)]
    json: bool,
}

/// The output of `--json`.
#[derive(Debug, Serialize)]
struct Change {
    pid: u32,
    dram_budget_bytes_before: u64,
    dram_budget_bytes: u64,
    /// How much of the budget the processes have been given.
    given_bytes: u64,
}

/// Changes the budget, and waits up to `GIVEN_BACK_WITHIN` for a smaller one to take effect.
pub fn set(args: &SetArgs) -> Result<process::ExitCode, Failure> {
    let SetArgs { pid, .. } = *args;
    let instance = instances::of_process(pid)?;
    let Some(ledger) = instance.ledger()? else {
        let cause = format!("each process of {pid} has a budget of its own (--budget process, or --record)");
        let remedy = "start the program with --budget tree and without --record: that budget can be changed";
        return Err(Failure::new(ExitCode::Failure, cause, remedy));
    };
    let dram = args.dram.of(&Allowed::read()?)?;
    let bytes = |word: usize| ledger.words()[word].load(Ordering::Relaxed) * PAGE_BYTES;
    let max = bytes(LEDGER_BUDGET_MAX_WORD);
    if dram.0 > max {
        let cause = format!("--dram {dram}: process {pid} was started with room for {} at the most", ByteSize(max));
        let remedy = "the maximum is what it was allowed at its start, or its --dram where address space is limited";
        return Err(Failure::new(ExitCode::Failure, cause, remedy));
    }
    let before = change(&ledger, dram.0 / PAGE_BYTES) * PAGE_BYTES;
    let given = || bytes(LEDGER_GIVEN_WORD);
    let began = Instant::now();
    while given() > dram.0 && began.elapsed() < GIVEN_BACK_WITHIN {
        thread::sleep(LOOK_AGAIN);
    }
    let change = Change {
        pid,
        dram_budget_bytes_before: before,
        dram_budget_bytes: dram.0 / PAGE_BYTES * PAGE_BYTES,
        given_bytes: given(),
    };
    if args.json {
        output::print(&(serde_json::to_string(&change).expect("numbers are always JSON") + "\n"))?;
    } else {
        output::print(&format!("{pid}: {} -> {dram}\n", ByteSize(before)))?;
    }
    if change.given_bytes > dram.0 {
        say(&format!(
            "{pid} still uses {}; eviction goes on, or begins at the program's next allocation if it has fitted its budget until now",
            ByteSize(change.given_bytes)
        ));
    }
    Ok(ExitCode::Success.into())
}

/// Stores the budget, and wakes the processes that follow it. Returns the previous budget, in pages.
fn change(ledger: &SharedSegment, pages: u64) -> u64 {
    let before = ledger.words()[LEDGER_BUDGET_WORD].swap(pages, Ordering::AcqRel);
    let events = &ledger.halves()[LEDGER_EVENTS_WORD * 2];
    events.fetch_add(1, Ordering::SeqCst);
    wake_all(events);
    before
}

#[cfg(test)]
mod tests {
    use aquifer_config::{LEDGER_NAME, LEDGER_WORDS};

    use super::*;

    #[test]
    fn a_change_is_an_event() {
        let ledger = SharedSegment::create(LEDGER_NAME, LEDGER_WORDS).expect("a memfd");
        assert_eq!((change(&ledger, 4096), change(&ledger, 8192)), (0, 4096));
        assert_eq!(ledger.halves()[LEDGER_EVENTS_WORD * 2].load(Ordering::SeqCst), 2);
    }
}

// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Every byte is right while the kernel migrates pages of the program.
//!
//! The trouble it guards against has occurred: UFFDIO_MOVE of Linux 6.18 reports EEXIST for pages that it has just
//! moved, if it met one that was being migrated. Taken for a refusal, this lost the pages: zeros, or the end of the
//! program. The test triggers compaction constantly; without that it took an hour of runs to see the error.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use aquifer_e2e::matrix::{PARTS_ALL, Setting};

const COMPACT: &str = "/proc/sys/vm/compact_memory";

/// Calls `body` while the kernel compacts memory repeatedly. Returns false, and reports a skip, if compaction may not
/// be triggered.
fn while_pages_migrate(body: impl FnOnce()) -> bool {
    if let Err(error) = std::fs::write(COMPACT, "1") {
        aquifer_test_support::skip(format!("{COMPACT} cannot be written ({error}); run it as root"));
        return false;
    }
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                let _ = std::fs::write(COMPACT, "1");
                std::thread::sleep(Duration::from_millis(20));
            }
        });
        // Ends the thread even if the body panics, because the scope waits for it.
        let _end = End(&over);
        body();
    });
    true
}

struct End<'a>(&'a AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn every_byte_is_right_while_pages_migrate() {
    while_pages_migrate(|| {
        for (seed, delivery) in ["auto", "listener", "auto"].into_iter().enumerate() {
            let tier = if seed == 2 { "flash:" } else { "dram:" };
            let setting = Setting { delivery, tier, exchange: "move", ..Setting::PLAIN };
            if let Some(ended) = setting.torture(70 + seed as u64, 8, PARTS_ALL) {
                assert_eq!(ended.status, Some(0), "{setting:?}:\n{}", ended.stderr);
            }
        }
    });
}

// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! What has to be known and open before the parts of a space come together in `pager.rs`: what the kernel's
//! userfaultfd(2) can do, the userfaultfds, the settings of the engines, and the recording.
//!
//! Runs once for each space, on the thread that opens it.

use std::sync::Arc;

use aquifer_core::prefetch::WINDOW_PAGES;
use aquifer_core::shard_budgets::ShardBudgets;
use aquifer_core::units::{Order, PAGE_BYTES};
use aquifer_core::{engine, record};
use aquifer_sys::readiness::Readiness;
use aquifer_sys::uffd::{Uffd, feature, probe_features};

use crate::exchange::{self, Way};
use crate::pager::{Owner, Settings, StartFailure, slabs_of};
use crate::recorder::Recorder;

/// With copying, a block uses memory both in its frame and at the program's address until the copy is complete. A block
/// may take at most this fraction of the budget, because several threads install at the same time, and system calls pin
/// memory as well.
const COPIED_PART: u64 = 64;

/// The cost of a fetch in units of one rescue, from a medium and from memory. Guesses: a rescue is a fault and two
/// exchanges, about 15 us; a read from a fast disk takes 80 us, a copy from memory 1 us, plus the exchanges.
const FETCH_COST_MEDIUM: u64 = 5;
const FETCH_COST_MEMORY: u64 = 1;

/// What this kernel's userfaultfd can do.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Features(u64);

impl Features {
    /// Asks the kernel, which must at least deliver faults by signal.
    pub(crate) fn probe() -> Result<Self, StartFailure> {
        let found = probe_features(true).or_else(|_| probe_features(false)).map_err(StartFailure::Uffd)?;
        if found & feature::SIGBUS == 0 {
            return Err(StartFailure::Feature("SIGBUS feature (Linux 4.14)"));
        }
        Ok(Self(found))
    }

    fn has(self, feature: u64) -> bool {
        self.0 & feature != 0
    }

    /// Whether a lost page can be poisoned.
    pub(crate) fn can_poison(self) -> bool {
        self.has(feature::POISON)
    }

    /// Whether pages can be write-protected.
    fn can_protect(self) -> bool {
        self.has(feature::PAGEFAULT_FLAG_WP)
    }

    /// How pages are exchanged: in the way that was asked for, or in the best one.
    pub(crate) fn way(self, asked: Option<Way>) -> Result<Way, StartFailure> {
        match asked {
            Some(Way::Move) if !self.has(feature::MOVE) => Err(StartFailure::Feature("UFFDIO_MOVE (Linux 6.8)")),
            Some(way) => Ok(way),
            None if self.has(feature::MOVE) => Ok(Way::Move),
            None => Ok(Way::Copy),
        }
    }
}

/// The userfaultfds of a space.
pub(crate) struct Descriptors {
    pub(crate) signal: Uffd,
    /// `None`: this process can have no listener.
    pub(crate) listener: Option<Uffd>,
    /// What the listeners wait for.
    pub(crate) readiness: Option<Readiness>,
    /// The features that both have.
    pub(crate) features: u64,
}

impl Descriptors {
    /// A listener's are among them if it `may_listen` and this process may have one.
    pub(crate) fn open(found: Features, owner: Owner, may_listen: bool) -> Result<Self, StartFailure> {
        let features = (feature::MOVE | feature::POISON | feature::PAGEFAULT_FLAG_WP) & found.0;
        let signal = Uffd::open(features | feature::SIGBUS, false).map_err(StartFailure::Uffd)?.kept();
        // A listener reports a lost page by poisoning it. Otherwise it could only end the process.
        let may_listen = may_listen && (owner == Owner::Program || found.can_poison());
        let listen = || Uffd::open(features | (feature::THREAD_ID & found.0), true).ok().map(Uffd::kept);
        let listener = may_listen.then(listen).flatten();
        let readiness = listener.as_ref().map(|uffd| Readiness::of(uffd.descriptor())).transpose();
        Ok(Self { signal, listener, readiness: readiness.map_err(StartFailure::Uffd)?, features })
    }
}

/// The settings of the space's engines.
pub(crate) fn engine_settings(
    settings: &Settings,
    found: Features,
    way: Way,
    budgets: &ShardBudgets,
) -> engine::Settings {
    engine::Settings {
        budget_pages: settings.dram_bytes / PAGE_BYTES,
        tier_slabs: slabs_of(&*settings.tier),
        prefetch: settings.prefetch,
        elastic: settings.elastic,
        copied_pages_max: match way {
            Way::Move => (exchange::COPIED_BYTES_MAX / PAGE_BYTES) as u32,
            Way::Copy => Order::MAX.pages().min((budgets.pages(0) / COPIED_PART) as u32),
        },
        seals: found.can_protect(),
        fetch_cost: if settings.tier.waits_for_medium() { FETCH_COST_MEDIUM } else { FETCH_COST_MEMORY },
        window_pages: WINDOW_PAGES.max((settings.tier.busy_bytes() / PAGE_BYTES) as u32),
    }
}

/// Starts the recording, if there is to be one. A program goes on without it; a caller gets the error.
pub(crate) fn start_recorder(
    settings: &Settings,
    engine_settings: engine::Settings,
) -> Result<Option<Arc<Recorder>>, StartFailure> {
    let Some(path) = &settings.record else { return Ok(None) };
    let header = record::Header {
        settings: engine_settings,
        policy: settings.policy.as_str().to_owned(),
        pid: std::process::id(),
        release: env!("CARGO_PKG_VERSION").to_owned(),
        program: settings.program.clone(),
    };
    match settings.owner {
        Owner::Program => Ok(Recorder::start_for_program(path, &header)),
        Owner::Caller => {
            let started = Recorder::start_for_caller(path, &header);
            started.map(Some).map_err(|error| StartFailure::Recording(path.clone(), error))
        }
    }
}

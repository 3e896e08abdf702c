// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! One memory space: its parts, and how they come together. `opening.rs` has what comes first, `shard.rs` what each of
//! its shards has, `shards.rs` the operations on several, `service.rs` its threads and its end.
//!
//! The space of an unchanged program is made once, when managed memory reaches the budget, and lives until the process
//! ends: closing its userfaultfds or unmapping its frames would turn absent pages into zeros. The space of a caller
//! (`memory_space.rs`) can be closed, after its mappings are gone.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::{fmt, io};

use aquifer_core::map::Delivery;
use aquifer_core::policy::PolicyName;
use aquifer_core::shard_budgets::ShardBudgets;
use aquifer_core::stripes::{Stripes, shards_for};
use aquifer_core::units::{Order, PAGE_BYTES, REGION_BYTES};
use aquifer_stats::{Counter, Counters, Gauge, LEVELS, LevelCounter};
use aquifer_sys::lifeline::Lifeline;
use aquifer_sys::raw::Errno;
use aquifer_sys::readiness::Readiness;
use aquifer_sys::uffd::{Refused, Uffd, feature};
use aquifer_tiers::{Forks, Tier};

use crate::exchange::{Uffds, Way};
use crate::family::{Family, TooMany};
use crate::gauges::AllPublished;
use crate::huge_frames::HugeFrames;
use crate::ledger::Ledger;
use crate::listener::Streak;
use crate::opening::{self, Descriptors, Features};
use crate::pins::Pins;
use crate::process_table::PROCESSES_MAX;
use crate::recorder::Recorder;
use crate::sampling::Sampling;
use crate::service::Service;
use crate::shard::{self, Made, Shard};
use crate::trims::Trims;

/// Number of threads that read-ahead distinguishes. Further threads share numbers, which costs accuracy only.
pub const THREADS_MAX: u16 = 256;

/// The owner of a space, which decides what happens when the space cannot go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// An unchanged program, which ends with a message, since a load or store cannot return an error.
    Program,
    /// A caller, which gets the error from the next call. Nothing ends the process.
    Caller,
}

/// The settings of a space.
pub struct Settings {
    /// The space's owner.
    pub owner: Owner,
    /// Local DRAM for managed memory, in bytes.
    pub dram_bytes: u64,
    /// Block size for new mappings.
    pub order: Order,
    /// How many shards the space is divided into. `None`: as many as fit the CPUs and this process's budget.
    pub shards: Option<usize>,
    /// Whether regions may change their block size.
    pub elastic: bool,
    /// Chooses victims.
    pub policy: PolicyName,
    /// Stores cold blocks.
    pub tier: Box<dyn Tier>,
    /// The state shared with the processes that this one forks and with those it was forked from.
    pub family: Arc<Family>,
    /// The ledger of the budget, if this process shares one.
    pub ledger: Option<&'static Ledger>,
    /// How pages are exchanged; `None` selects the best way that the kernel supports.
    pub way: Option<Way>,
    /// Whether listeners may resolve faults, if this process may have any. Without them, all delivery is by signal.
    pub may_listen: bool,
    /// Whether to read ahead.
    pub prefetch: bool,
    /// The path at which to record the calls into the engine, if any.
    pub record: Option<String>,
    /// Whether to time the use of the engine's lock.
    pub time_lock: bool,
    /// The program's name, written to the recording.
    pub program: String,
}

/// Why a pager could not be started.
#[derive(Debug)]
pub enum StartFailure {
    /// userfaultfd(2) is refused.
    Uffd(Errno),
    /// The kernel lacks a required feature.
    Feature(&'static str),
    /// No address space is left for frames.
    Frames(Errno),
    /// A thread could not be started.
    Thread(io::Error),
    /// This process was forked, and its family has too many processes.
    Family(TooMany),
    /// The tier could not get the resources that a forked process needs for itself.
    Tier(Errno),
    /// The tier's queue could not be opened.
    Queue(aquifer_tiers::TierFailure),
    /// The file for the recording could not be made, or is not empty.
    Recording(String, io::Error),
}

impl fmt::Display for StartFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Frames(Errno(libc::EMFILE | libc::ENFILE)) | Self::Uffd(Errno(libc::EMFILE | libc::ENFILE)) => {
                write!(f, "the pager needs some descriptors of its own; raise the limit of open files (ulimit -n)")
            }
            Self::Uffd(errno) => write!(f, "{}", Refused::of(*errno)),
            Self::Feature(name) => {
                write!(f, "this kernel's userfaultfd has no {name}; use a newer kernel, or leave the choice to 'auto'")
            }
            Self::Frames(errno) => {
                write!(f, "no address space for frames ({errno}); raise the limit on address space (ulimit -v)")
            }
            Self::Thread(error) => {
                write!(f, "cannot start a pager thread ({error}); raise the limit on processes (ulimit -u)")
            }
            Self::Family(TooMany) => {
                write!(f, "more than {PROCESSES_MAX} forked processes of one program manage memory; let some end")
            }
            Self::Tier(errno) => {
                write!(f, "a forked process has no way of its own to the tier ({errno}); raise its limits (ulimit -a)")
            }
            Self::Queue(failure) => write!(f, "{failure}"),
            Self::Recording(path, error) => {
                write!(f, "the space cannot be recorded to {path}: {error}; name a new file, or an empty one")
            }
        }
    }
}

impl std::error::Error for StartFailure {}

/// One memory space: its engine, frames, tier, userfaultfds and threads.
pub struct Pager {
    pub(crate) shards: Box<[Box<Shard>]>,
    /// Which of them has a page.
    pub(crate) stripes: Stripes,
    /// How they divide the budget.
    pub(crate) budgets: Mutex<ShardBudgets>,
    /// What each of them last said about itself.
    pub(crate) published: AllPublished,
    /// Whether a shard has asked for pages.
    pub(crate) is_asked: AtomicBool,
    /// When the division was last looked at, in nanoseconds of the monotonic clock.
    pub(crate) looked_ns: AtomicU64,
    pub(crate) recorder: Option<Arc<Recorder>>,
    /// Whether the use of the engine's lock is timed.
    pub(crate) times_lock: bool,
    /// Only with `Way::Move`: the memory from which fresh frames are cut.
    pub(crate) huge_frames: Option<HugeFrames>,
    pub(crate) signal: Uffd,
    listener: Option<Uffd>,
    pub(crate) tier: Box<dyn Tier>,
    pub(crate) way: Way,
    pub(crate) can_poison: bool,
    pub(crate) counters: Arc<Counters>,
    pub(crate) order: Order,
    /// The exponent of the largest block that there may be, huge blocks aside: of the largest that any shard's budget
    /// has allowed. Written with that shard's engine locked.
    pub(crate) largest: AtomicU8,
    /// Whether any memory has had huge blocks. Written with the engine locked, before the first such block exists.
    pub(crate) had_huge_blocks: AtomicBool,
    /// The budget at the start.
    pub(crate) budget_pages: u64,
    /// The largest budget for which frame addresses are reserved. See `share.rs`.
    pub(crate) budget_pages_max: u64,
    /// The current budget of the engines.
    pub(crate) budget_now: AtomicU64,
    /// What the engines and a tier in local memory share: this process's share of the tree's budget.
    pub(crate) share_now: AtomicU64,
    /// Pages that a tier takes of that share now.
    pub(crate) tier_pages: AtomicU64,
    /// Bytes that have been written back since a writer last looked at what such a tier takes. `None`: it takes none.
    pub(crate) written_to_tier: Option<AtomicU64>,
    /// Pages that the pager itself takes, and how many of them have been taken off that share.
    pub(crate) own_pages: AtomicU64,
    pub(crate) own_pages_taken: AtomicU64,
    pub(crate) ledger: Option<&'static Ledger>,
    pub(crate) reported_many: AtomicBool,
    pub(crate) reported_small: AtomicBool,
    pub(crate) pins: Pins,
    /// Notifies the worker when no thread of the program is left. `None`: the space is a caller's.
    pub(crate) lifeline: Option<Lifeline>,
    /// What the listeners wait for, if there are any.
    pub(crate) readiness: Option<Readiness>,
    /// The threads, and whether they are to end.
    pub(crate) service: Service,
    /// Room in the tier that the program has freed.
    pub(crate) trims: Trims,
    /// Samples for the miss-ratio curve.
    pub(crate) sampling: Sampling,
    /// Since when listeners have found no room.
    pub(crate) no_room: Streak,
    /// The state shared with forked children.
    pub(crate) family: Arc<Family>,
    /// The thread that is about to fork, or zero. Until it has forked, no other thread starts new work.
    pub(crate) forking: AtomicUsize,
    /// This process was forked: its faults are delivered by signal only.
    pub(crate) is_forked_child: AtomicBool,
    /// This process was forked and has no worker yet.
    pub(crate) lacks_threads: AtomicBool,
    /// Faults since the fork, while there is no worker.
    pub(crate) faults_as_child: AtomicU64,
    /// When the process was forked, in nanoseconds of the monotonic clock.
    pub(crate) forked_at_ns: AtomicU64,
    /// The features of the userfaultfds.
    features: u64,
    /// How much of the work of a chain's levels has been added to the counters.
    pub(crate) published_levels: [[AtomicU64; LevelCounter::COUNT]; LEVELS],
}

/// The CPUs that this process may use.
fn cpus() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// The pages of the budget that this process gets now, if it shares one.
fn own_part(settings: &Settings, budget_pages: u64) -> u64 {
    let ledger = settings.ledger.filter(|ledger| ledger.join());
    ledger.map_or(budget_pages, |ledger| ledger.share().min(budget_pages))
}

/// How many shards the space has.
fn shards_of(settings: &Settings, budget_pages: u64) -> usize {
    match settings.shards {
        // A recording is of one engine.
        _ if settings.record.is_some() => 1,
        Some(shards) => shards,
        None => shards_for(cpus(), own_part(settings, budget_pages)),
    }
}

/// Number of regions that the tier has room for.
pub fn slabs_of(tier: &dyn Tier) -> u32 {
    u32::try_from(tier.capacity_bytes() / REGION_BYTES).unwrap_or(u32::MAX - 1)
}

impl Pager {
    /// Makes the space of an unchanged program, which is never closed, and starts its threads.
    pub fn start(settings: Settings, counters: Arc<Counters>) -> Result<&'static Pager, StartFailure> {
        let pager: &'static Pager = Box::leak(Pager::open(settings, counters)?);
        // Before any mapping is registered, because its pages count against the share.
        pager.shards().for_each(|view| view.publish_own_use(&view.engine()));
        pager.follow_share();
        pager.start_listeners()?;
        pager.start_threads()?;
        Ok(pager)
    }

    /// Makes a space that has no threads yet. `counters` are for this space alone.
    pub(crate) fn open(settings: Settings, counters: Arc<Counters>) -> Result<Box<Pager>, StartFailure> {
        #[cfg(debug_assertions)]
        crate::planted::prepare();
        let found = Features::probe()?;
        let way = found.way(settings.way)?;
        let Descriptors { signal, listener, readiness, features } =
            Descriptors::open(found, settings.owner, settings.may_listen)?;
        let budget_pages = settings.dram_bytes / PAGE_BYTES;
        let shards = shards_of(&settings, budget_pages);
        let stripes = Stripes::new(shards, budget_pages);
        let budgets = ShardBudgets::new(stripes.shards(), budget_pages);
        let huge_frames =
            (way == Way::Move).then(|| HugeFrames::new(&signal).map_err(StartFailure::Frames)).transpose()?;
        // With a recording, the budget stays constant, and the tier's memory comes on top.
        let takes_memory = settings.tier.compression().is_some() && settings.record.is_none();
        let engine_settings = opening::engine_settings(&settings, found, way, &budgets);
        let recorder = opening::start_recorder(&settings, engine_settings)?;
        settings.family.join().map_err(StartFailure::Family)?;
        // This process may have been forked since the tier was opened.
        settings.tier.after_fork_in_child(false).map_err(StartFailure::Tier)?;
        let plan = shard::Plan {
            settings: engine_settings,
            policy: settings.policy,
            stripes,
            budgets: &budgets,
            budget_pages_max: settings.ledger.map_or(budget_pages, Ledger::pages_max),
            family: &settings.family,
            takes_memory,
            uffd: &signal,
        };
        let Made { shards, changes, budget_pages_max } = plan.carry_out().map_err(StartFailure::Frames)?;
        let largest = shards[0].lock().largest(settings.order);
        let pins = Pins::new(changes);
        let lifeline = (settings.owner == Owner::Program).then(Lifeline::new).transpose();
        let pager = Box::new(Pager {
            huge_frames,
            signal,
            listener,
            tier: settings.tier,
            way,
            can_poison: found.can_poison(),
            counters,
            order: settings.order,
            largest: AtomicU8::new(largest.exponent() as u8),
            had_huge_blocks: AtomicBool::new(false),
            shards,
            stripes,
            published: AllPublished::new(stripes.shards()),
            budgets: Mutex::new(budgets),
            is_asked: AtomicBool::new(false),
            looked_ns: AtomicU64::new(0),
            recorder,
            times_lock: settings.time_lock,
            budget_pages,
            budget_pages_max,
            budget_now: AtomicU64::new(budget_pages),
            share_now: AtomicU64::new(budget_pages),
            tier_pages: AtomicU64::new(0),
            written_to_tier: takes_memory.then(AtomicU64::default),
            own_pages: AtomicU64::new(0),
            own_pages_taken: AtomicU64::new(0),
            ledger: settings.ledger,
            reported_many: AtomicBool::new(false),
            reported_small: AtomicBool::new(false),
            pins,
            lifeline: lifeline.map_err(StartFailure::Frames)?,
            readiness,
            service: Service::new(settings.owner),
            trims: Trims::new()?,
            sampling: Sampling::default(),
            no_room: Streak::default(),
            family: settings.family,
            forking: AtomicUsize::new(0),
            is_forked_child: AtomicBool::new(false),
            lacks_threads: AtomicBool::new(false),
            faults_as_child: AtomicU64::new(0),
            forked_at_ns: AtomicU64::new(0),
            features,
            published_levels: [const { [const { AtomicU64::new(0) }; LevelCounter::COUNT] }; LEVELS],
        });
        pager.publish_tier();
        Ok(pager)
    }

    /// Publishes how large the tier is and which levels it has.
    fn publish_tier(&self) {
        self.counters.set(Gauge::TierCapacityBytes, self.tier.capacity_bytes());
        for (index, figures) in (0..LEVELS).map_while(|index| self.level(index)).enumerate() {
            self.counters.write_level(index, figures.name);
        }
        self.publish_levels();
    }

    /// After fork(2): opens userfaultfds for this process. Through the inherited ones it could write to its parent's
    /// memory.
    pub(crate) fn replace_uffd_in_child(&self) -> Result<(), Errno> {
        self.signal.replace_in_child(self.features | feature::SIGBUS, false)?;
        self.listener.as_ref().map_or(Ok(()), |listener| listener.give_up_for(&self.signal))
    }

    /// After fork(2), in the child, which does not inherit the space: gives up all that belongs to the parent. Opens
    /// nothing before it has closed that: the child may have no descriptor left.
    pub(crate) fn give_up_in_child(&self) -> Result<(), Errno> {
        self.service.forget_threads();
        self.recorder.as_ref().inspect(|recorder| recorder.close_in_child());
        [Some(&self.signal), self.listener.as_ref()].into_iter().flatten().for_each(Uffd::close_in_child);
        self.readiness.as_ref().inspect(|readiness| readiness.close_in_child());
        self.shards.iter().for_each(|shard| shard.worker_wakeup.close_in_child());
        self.trims.close_in_child();
        self.tier.give_up_in_child()
    }

    /// After fork(2): gives this process a supply of huge pages of its own.
    pub(crate) fn replace_huge_frames_in_child(&self) -> Result<(), Errno> {
        self.huge_frames.as_ref().map_or(Ok(()), |huge_frames| huge_frames.replace_in_child(&self.signal))
    }

    /// Keeps other threads from cutting frames for as long as the returned value lives.
    pub(crate) fn lock_huge_frames(&self) -> impl Sized {
        self.huge_frames.as_ref().map(HugeFrames::lock)
    }

    /// Whether the calls into the engine are being recorded.
    pub(crate) fn is_recorded(&self) -> bool {
        self.recorder.as_ref().is_some_and(|recorder| recorder.is_open())
    }

    /// The userfaultfd for a delivery.
    pub(crate) fn uffd(&self, delivery: Delivery) -> &Uffd {
        match (delivery, self.listener_uffd()) {
            (Delivery::Listener, Some(listener)) => listener,
            _ => &self.signal,
        }
    }

    /// The listener's userfaultfd, if this process may have a listener.
    pub fn listener_uffd(&self) -> Option<&Uffd> {
        self.listener.as_ref().filter(|_| !self.is_forked_child.load(Ordering::Relaxed))
    }

    /// Notes that newly registered memory already had `pages` pages, which the kernel had allocated one by one.
    pub(crate) fn note_scattered(&self, pages: u64) {
        if let Some(huge_frames) = &self.huge_frames {
            huge_frames.note_scattered(pages);
        }
    }

    /// The userfaultfds for both ends of an exchange with a mapping of this delivery.
    pub(crate) fn uffds(&self, delivery: Delivery) -> Uffds<'_> {
        Uffds { frames: &self.signal, program: self.uffd(delivery) }
    }

    /// Counts a failure.
    pub(crate) fn count_failure(&self, counter: Counter) {
        self.counters.add(Counter::Errors, 1);
        self.counters.add(counter, 1);
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use aquifer_core::units::ByteSize;
    use aquifer_test_support::skip;
    use aquifer_tiers::Dram;

    use super::*;

    /// A space without threads and with nothing mapped. `None`, and said so, where userfaultfd(2) is refused.
    pub(crate) fn opened(shards: usize, dram_bytes: u64) -> Option<Box<Pager>> {
        if let Err(refused) = aquifer_sys::uffd::probe() {
            skip(refused);
            return None;
        }
        let tier = Box::new(Dram::open(Some(ByteSize(1 << 30))).expect("memory"));
        let family = Arc::new(Family::of_one(slabs_of(&*tier)).expect("memory"));
        let settings = Settings {
            owner: Owner::Program,
            dram_bytes,
            order: Order::DEFAULT,
            shards: Some(shards),
            elastic: true,
            policy: PolicyName::ALL[0],
            tier,
            family,
            ledger: None,
            way: None,
            prefetch: true,
            record: None,
            may_listen: true,
            time_lock: false,
            program: String::new(),
        };
        Some(Pager::open(settings, Arc::new(Counters::create().expect("memory"))).expect("it can be opened"))
    }
}

// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! A member of an array: what it can do, and whether it is there.
//!
//! ```text
//!             a request fails, and the slab is not the reason
//!   there ───────────────────────────────────────────────► lost
//!      ▲                                                    │  looked for after pauses that grow,
//!      └────────────────────────────────────────────────────┘  in parallel with the program
//!                          it answers
//! ```
//!
//! Each process of a family decides for itself. A lost member is asked last, and gets no bytes to store where other
//! members are present.
//!
//! Threads: any, including signal handlers. Locks nothing, and allocates only for queues.

use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU8, AtomicU64, Ordering};
use std::time::Duration;

use aquifer_sys::raw::{Errno, now_ns};
use aquifer_tier::{KeepAlive, TierFailure, TierQueue};
use aquifer_tls::Distrust;
use aquifer_wire::RangeIndex;

use super::connection::Connection;
use super::membership::Drain;
use super::notices::Notice;
use crate::access_failure::{AccessFailure, LinkFailure};
use crate::donor::{Asked, Piece};

/// The pause before the first look for a lost member; each later pause is twice as long.
const LOOK_PAUSE_FIRST: Duration = Duration::from_millis(100);
/// The longest such pause. A choice: each look costs a failed attempt to connect.
const LOOK_PAUSE_MAX: Duration = Duration::from_secs(5);
/// The longest time between two looks at a member that is present. Without requests, its restart would go unnoticed,
/// and if another member were lost then, so would be the slabs that only these two had. A choice: one message a second.
const LOOK_EVERY_MAX: Duration = Duration::from_secs(1);
/// How long a member that had no room is not asked for room again. A choice.
const FULL_LASTS: Duration = Duration::from_secs(1);

/// In the running average, the time of one answer has a weight of one divided by this number.
const ANSWERS_WEIGHED: u64 = 16;
/// An answer is slow when it takes this many times longer than usual, within these limits: the time that a thread waits
/// for a CPU on a busy machine, and the delay that a person notices.
const HEDGE_FACTOR: u32 = 8;
const HEDGE_AFTER_MIN: Duration = Duration::from_millis(5);
const HEDGE_AFTER_MAX: Duration = Duration::from_millis(50);

/// What an array needs of each of its members, whatever the member is. `LinkFailure::Restarted`
/// means that everything that was stored before is lost.
pub(crate) trait Store: Send + Sync {
    /// The member's name in messages.
    fn name(&self) -> &str;

    /// Fills `into` from `offset`. Runs on the faulting thread.
    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), AccessFailure>;

    /// Asks for bytes of one slab without waiting for them. `None` if that cannot be done immediately.
    fn begin_read(&self, piece: Piece) -> Option<Asked<'_>> {
        let _ = piece;
        None
    }

    /// Sends bytes of one slab, if room is set aside, without waiting until they are stored. `None` if that cannot be
    /// done immediately.
    fn begin_write(&self, piece: Piece, bytes: &[u8]) -> Option<Asked<'_>> {
        let _ = (piece, bytes);
        None
    }

    /// Sets room aside for a range, and renews the room if there is some already. Must be called before anything is
    /// written there and before others learn that the slab is here: from then on, room that is gone means bytes that
    /// are gone.
    fn take(&self, range: RangeIndex) -> Result<(), AccessFailure>;

    /// Stores `bytes` at `offset`, where room is set aside. May run on the faulting thread.
    fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), AccessFailure>;

    /// Gives the space of a part of a slab back to the member's machine.
    fn discard(&self, offset: u64, len: u64) -> Result<(), AccessFailure>;

    /// The room that is set aside for a range.
    fn room(&self, range: RangeIndex) -> Option<Room>;

    /// Gives that room back, unless it was taken again since it was seen.
    fn give_back(&self, range: RangeIndex, room: Room) -> Result<(), AccessFailure>;

    /// The first range at or after `from` that the member will lose unless it is given back in time.
    fn leaving(&self, from: RangeIndex) -> Option<RangeIndex> {
        let _ = from;
        None
    }

    /// As [`Tier::open_queue`](aquifer_tier::Tier::open_queue).
    fn open_queue(&self, depth: u32) -> Result<Box<dyn TierQueue>, TierFailure>;

    /// As [`Forks::after_fork_in_child`](aquifer_tier::Forks::after_fork_in_child).
    fn after_fork_in_child(&self) -> Result<(), Errno>;

    /// Checks whether the member is present. If it is called often enough, this also keeps what is stored.
    fn look(&self) -> Result<(), AccessFailure>;

    /// Sends the request that keeps what is stored, without waiting for the answer. `None` if that cannot be done
    /// immediately.
    fn begin_keep_alive(&self) -> Option<Box<dyn KeepAlive + '_>> {
        None
    }

    /// The interval at which the member needs a look or that request.
    fn look_every(&self) -> Duration;

    /// Rereads the files that new connections to the member need, if they have changed. On the upkeep thread.
    fn refresh(&self) {}

    /// Why such files cannot be used, once.
    fn take_notice(&self) -> Option<String> {
        None
    }

    /// After a restart of the member: discards the record of everything that the member had, and starts again. Related
    /// processes share that record, and one of them discards it for all. In that process, this calls `forget`, which
    /// removes the member from all places. Its argument checks a place that `forget` has just read: true if the place
    /// is still from before the restart. Returns false if a related process is doing this now; the caller then calls it
    /// again later.
    fn start_over(&self, forget: &dyn Fn(&dyn Fn() -> bool)) -> bool;

    /// The run of the member that has what is stored; 0 if it is not known.
    fn run(&self) -> u64 {
        0
    }
}

/// Room that was set aside for a range, until it is taken again or given back. Only the store interprets the
/// number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Room(pub(crate) u64);

/// What a failure says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trouble {
    /// The member has nothing of this slab, but is present.
    Gone,
    /// The member has no room for this slab, but is present.
    Full,
    /// The request may succeed in a moment.
    Passing,
    /// The member is absent.
    Absent,
}

impl Trouble {
    pub(crate) fn of(failure: AccessFailure) -> Trouble {
        match failure {
            AccessFailure::Gone => Trouble::Gone,
            AccessFailure::Full | AccessFailure::OverQuota => Trouble::Full,
            AccessFailure::Busy | AccessFailure::NotNow => Trouble::Passing,
            AccessFailure::Link(LinkFailure::System(Errno(errno))) => match errno {
                libc::ENODATA => Trouble::Gone,
                libc::ENOSPC | libc::EDQUOT => Trouble::Full,
                libc::EBUSY | libc::EAGAIN | libc::EINTR | libc::ENOMEM | libc::ENOBUFS => Trouble::Passing,
                _ => Trouble::Absent,
            },
            _ => Trouble::Absent,
        }
    }
}

/// A member of an array: what it stores, and whether it is present.
pub(crate) struct Member {
    pub(crate) store: Connection,
    /// When the member was lost; 0 while it is present.
    lost_since_ns: AtomicU64,
    /// The error number of its last failed request, while it is lost.
    lost_by: AtomicI32,
    /// When to look for it next.
    look_at_ns: AtomicU64,
    /// The pause after the next look, while the member is lost.
    pause_ns: AtomicU64,
    full_until_ns: AtomicU64,
    /// How long its answers take, as a running average.
    answers_in_ns: AtomicU64,
    /// The member was asked and has not answered, and its presence has not been checked since.
    pub(crate) is_silent: AtomicBool,
    /// The member lacked a slab that it should have, and its other slabs have not been checked since.
    pub(crate) lacks_slabs: AtomicBool,
    /// How many of its pages were not what was stored.
    wrong_pages: AtomicU64,
    /// There were too many wrong pages.
    is_quarantined: AtomicBool,
    /// The run of the member that this process last found; 0: none yet.
    run: AtomicU64,
    /// The member was restarted, and this has not been reported.
    pub(crate) was_restarted: AtomicBool,
    /// What was last reported about it (`notices.rs`).
    last_notice: AtomicU8,
    /// The progress of its drain.
    pub(super) drain: Drain,
}

impl Member {
    pub(crate) fn new(store: Connection) -> Member {
        let zero = || AtomicU64::new(0);
        let pause_ns = AtomicU64::new(nanoseconds(LOOK_PAUSE_FIRST));
        Member {
            store,
            lost_since_ns: zero(),
            lost_by: AtomicI32::new(0),
            look_at_ns: zero(),
            pause_ns,
            full_until_ns: zero(),
            answers_in_ns: zero(),
            is_silent: AtomicBool::new(false),
            lacks_slabs: AtomicBool::new(false),
            wrong_pages: zero(),
            is_quarantined: AtomicBool::new(false),
            run: zero(),
            was_restarted: AtomicBool::new(false),
            last_notice: AtomicU8::new(Notice::Present as u8),
            drain: Drain::default(),
        }
    }

    /// Records that `now` is being reported. Returns false if it was also the last report.
    pub(crate) fn is_news(&self, now: Notice) -> bool {
        self.last_notice.swap(now as u8, Ordering::Relaxed) != now as u8
    }

    /// Counts wrong pages of this member. Returns true when this call makes them exceed `max`.
    pub(crate) fn was_wrong(&self, pages: u64, max: u64) -> bool {
        let before = self.wrong_pages.fetch_add(pages, Ordering::Relaxed);
        before + pages > max && !self.is_quarantined.swap(true, Ordering::AcqRel)
    }

    /// Whether it is in quarantine (`quarantine.rs`).
    pub(crate) fn is_quarantined(&self) -> bool {
        self.is_quarantined.load(Ordering::Acquire)
    }

    /// Called when the member has answered. A related process may have noticed and dealt with a restart that this one
    /// has not noticed.
    pub(crate) fn follow_run(&self) {
        let run = self.store.run();
        let before = self.run.load(Ordering::Relaxed);
        if before != 0 && run != 0 && before != run {
            self.restarted();
        }
        self.run.store(run, Ordering::Relaxed);
    }

    /// The member was restarted: ends the quarantine, because the member has none of its wrong pages any more, and has
    /// the restart reported.
    pub(crate) fn restarted(&self) {
        self.run.store(0, Ordering::Relaxed);
        self.wrong_pages.store(0, Ordering::Relaxed);
        self.is_quarantined.store(false, Ordering::Release);
        self.was_restarted.store(true, Ordering::Release);
    }

    pub(crate) fn is_lost(&self) -> bool {
        self.lost_since_ns.load(Ordering::Relaxed) != 0
    }

    /// How long it has been lost.
    pub(crate) fn lost_for(&self) -> Option<Duration> {
        let since = self.lost_since_ns.load(Ordering::Relaxed);
        (since != 0).then(|| Duration::from_nanos(now_ns().saturating_sub(since)))
    }

    /// Records the failure of a request by which it is absent.
    pub(crate) fn lost_by(&self, failure: AccessFailure) {
        self.lost_by.store(failure.errno(), Ordering::Relaxed);
    }

    /// Whether it is lost because its certificate is revoked.
    pub(crate) fn is_revoked(&self) -> bool {
        self.is_lost() && self.lost_by.load(Ordering::Relaxed) == Distrust::DonorRevoked.errno()
    }

    /// Whether it can be given another slab.
    pub(crate) fn takes_slabs(&self) -> bool {
        !self.is_lost() && !self.is_quarantined() && now_ns() >= self.full_until_ns.load(Ordering::Relaxed)
    }

    /// Records a failed request. Returns true when the member counted as present and is lost now.
    pub(crate) fn failed(&self, trouble: Trouble) -> bool {
        match trouble {
            Trouble::Gone | Trouble::Passing => false,
            Trouble::Full => {
                self.full_until_ns.store(now_ns() + nanoseconds(FULL_LASTS), Ordering::Relaxed);
                false
            }
            Trouble::Absent => {
                let now = now_ns();
                let lost = self.lost_since_ns.compare_exchange(0, now, Ordering::Relaxed, Ordering::Relaxed).is_ok();
                if lost {
                    self.pause_ns.store(nanoseconds(LOOK_PAUSE_FIRST), Ordering::Relaxed);
                    self.look_at_ns.store(now + nanoseconds(LOOK_PAUSE_FIRST), Ordering::Relaxed);
                }
                lost
            }
        }
    }

    /// Called when the member has not answered and is no longer waited for: schedules a check of its presence now.
    pub(crate) fn suspect(&self) {
        self.look_at_ns.fetch_min(now_ns(), Ordering::Relaxed);
    }

    /// Records that the member has answered.
    pub(crate) fn found(&self) {
        self.lost_since_ns.store(0, Ordering::Relaxed);
        self.full_until_ns.store(0, Ordering::Relaxed);
    }

    /// Records how long an answer took.
    pub(crate) fn answered_in(&self, time: Duration) {
        let (before, now) = (self.answers_in_ns.load(Ordering::Relaxed), nanoseconds(time));
        // If two threads race, one sample of many is lost.
        self.answers_in_ns.store(before - before / ANSWERS_WEIGHED + now / ANSWERS_WEIGHED, Ordering::Relaxed);
    }

    /// How long to wait for this member alone.
    pub(crate) fn hedge_after(&self) -> Duration {
        let usual = Duration::from_nanos(self.answers_in_ns.load(Ordering::Relaxed));
        (usual * HEDGE_FACTOR).clamp(HEDGE_AFTER_MIN, HEDGE_AFTER_MAX)
    }

    /// The time until somebody has to look for it.
    pub(crate) fn look_in(&self) -> Duration {
        Duration::from_nanos(self.look_at_ns.load(Ordering::Relaxed).saturating_sub(now_ns()))
    }

    /// Records that somebody has looked for it, and whether it was present.
    pub(crate) fn looked(&self, was_there: bool) {
        self.is_silent.store(!was_there, Ordering::Relaxed);
        let pause = if was_there {
            self.store.look_every().min(LOOK_EVERY_MAX)
        } else {
            let pause = Duration::from_nanos(self.pause_ns.load(Ordering::Relaxed));
            self.pause_ns.store(nanoseconds((pause * 2).min(LOOK_PAUSE_MAX)), Ordering::Relaxed);
            pause
        };
        self.look_at_ns.store(now_ns() + nanoseconds(pause), Ordering::Relaxed);
    }

    /// In a forked child: forgets what the parent's connections have shown.
    pub(crate) fn forget(&self) {
        self.found();
        self.look_at_ns.store(0, Ordering::Relaxed);
    }
}

fn nanoseconds(duration: Duration) -> u64 {
    duration.as_nanos() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Nothing;

    impl Store for Nothing {
        fn name(&self) -> &str {
            "nothing"
        }
        fn read(&self, _: u64, _: &mut [u8]) -> Result<(), AccessFailure> {
            Err(AccessFailure::Link(LinkFailure::Ended))
        }
        fn take(&self, _: RangeIndex) -> Result<(), AccessFailure> {
            Err(AccessFailure::Link(LinkFailure::Ended))
        }
        fn write(&self, _: u64, _: &[u8]) -> Result<(), AccessFailure> {
            Err(AccessFailure::Link(LinkFailure::Ended))
        }
        fn discard(&self, _: u64, _: u64) -> Result<(), AccessFailure> {
            Err(AccessFailure::Link(LinkFailure::Ended))
        }
        fn room(&self, _: RangeIndex) -> Option<Room> {
            None
        }
        fn give_back(&self, _: RangeIndex, _: Room) -> Result<(), AccessFailure> {
            Err(AccessFailure::Link(LinkFailure::Ended))
        }
        fn open_queue(&self, _: u32) -> Result<Box<dyn TierQueue>, TierFailure> {
            unreachable!("nobody asks for one")
        }
        fn after_fork_in_child(&self) -> Result<(), Errno> {
            Ok(())
        }
        fn look(&self) -> Result<(), AccessFailure> {
            Err(AccessFailure::Link(LinkFailure::Ended))
        }
        fn look_every(&self) -> Duration {
            Duration::from_secs(20)
        }
        fn start_over(&self, _: &dyn Fn(&dyn Fn() -> bool)) -> bool {
            true
        }
    }

    #[test]
    fn a_lost_member_is_looked_for_less_and_less() {
        let member = Member::new(Connection::to(Box::new(Nothing)));
        assert!(member.takes_slabs() && member.look_in() == Duration::ZERO);
        assert!(member.failed(Trouble::of(AccessFailure::Link(LinkFailure::Ended))) && !member.failed(Trouble::Absent));
        assert!(member.is_lost() && member.lost_for().is_some() && !member.takes_slabs());
        assert!(member.look_in() <= LOOK_PAUSE_FIRST);
        let pauses: Vec<Duration> = (0..10)
            .map(|_| {
                member.looked(false);
                member.look_in()
            })
            .collect();
        assert!(pauses[1] > pauses[0] && pauses[9] > LOOK_PAUSE_MAX / 2 && pauses[9] <= LOOK_PAUSE_MAX);
        member.found();
        member.looked(true);
        assert!(!member.is_lost() && !member.look_in().is_zero());
        assert!(member.look_in() <= LOOK_EVERY_MAX, "a loss that nobody has noticed does not wait for a renewal");
        member.suspect();
        assert!(!member.is_lost() && member.look_in().is_zero());
    }

    #[test]
    fn a_member_without_room_is_there() {
        let member = Member::new(Connection::to(Box::new(Nothing)));
        assert!(!member.failed(Trouble::of(AccessFailure::Full)) && !member.failed(Trouble::of(AccessFailure::Gone)));
        assert!(!member.is_lost() && !member.takes_slabs());
    }
}

// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Decides which connections a donor keeps: strangers, which have not finished their handshake and greeting, in a small
//! pool of their own; and borrowers, up to the donor's and their tenant's limit.
//!
//! Pure: time is an argument, in milliseconds of a clock that never goes back. A connection that has to be ended is
//! returned to the caller, which shuts it.
//!
//! - A stranger never takes a borrower's place. The pool is bounded in total and for each address. When it is full, a
//!   newcomer replaces the longest-waiting stranger of the same address or, if the whole pool is full, of the address
//!   with the most strangers. Strangers that have sent nothing are replaced first.
//! - A stranger has a deadline, however busy its connection looks.
//! - An address whose strangers keep failing is admitted more slowly: beyond [`FAILURES_MAX`] its connections are
//!   closed when they arrive, without a thread or a handshake.
//! - When the number of borrowers' connections is at its limit, a newcomer replaces one that is idle. Its borrower
//!   reconnects when it needs the connection.
//! - A borrower with RDMA queue pairs is active without its connections, and the queue pairs end with the last of them.
//!   So that one counts as idle only for a tenant that has less than its share, if its own tenant has more.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv6Addr};

use aquifer_wire::{BorrowerId, Refusal};

use crate::counters::Peer;
use crate::tenants::TenantId;

/// The maximum number of strangers at the same time. A choice: each is a thread that waits, and a handshake takes some
/// milliseconds.
pub(crate) const STRANGERS_MAX: usize = 256;
/// The maximum number of strangers of one address at the same time.
pub(crate) const STRANGERS_OF_ADDRESS_MAX: usize = 64;
/// The maximum number of ended connections whose threads have not noticed yet. Beyond it, newcomers are turned away.
const DEPARTING_MAX: usize = 512;
/// After this number of recent failures of one address, newcomers from it are turned away.
const FAILURES_MAX: u64 = 1000;
/// How many failures are forgotten each second.
const FAILURES_FORGOTTEN_PER_S: u64 = 500;
/// The maximum number of addresses whose failures are counted. Beyond it, the address with the fewest failures is
/// dropped for each new one: an address that is turned away stays turned away, however many others fail once.
const ADDRESSES_MAX: usize = 4096;

/// A connection's number.
pub(crate) type Number = u64;

/// A handle on a connection.
pub(crate) trait Occupant: Clone {
    /// When the connection became idle; `None` while a request is being answered.
    fn idle_since_ms(&self) -> Option<u64>;
}

struct Stranger<C> {
    connection: C,
    origin: Peer,
    deadline_ms: u64,
    has_spoken: bool,
}

struct Member<C> {
    connection: C,
    tenant: TenantId,
    who: BorrowerId,
    /// Ending it would end the borrower's access to its memory, so it is not ended for a newcomer.
    is_pinned: bool,
}

/// How many times strangers of one address have failed recently.
#[derive(Clone, Copy, Default)]
struct Failures {
    count: u64,
    at_ms: u64,
}

impl Failures {
    fn now(self, now_ms: u64) -> u64 {
        let forgotten = now_ms.saturating_sub(self.at_ms).saturating_mul(FAILURES_FORGOTTEN_PER_S) / 1000;
        self.count.saturating_sub(forgotten)
    }
}

/// Decides which connections a donor keeps.
pub(crate) struct Admission<C> {
    strangers: BTreeMap<Number, Stranger<C>>,
    members: BTreeMap<Number, Member<C>>,
    /// Borrowers of these members that have queue pairs.
    paired: BTreeSet<BorrowerId>,
    /// The number of connections that were ended to make room, and whose threads have not noticed yet.
    departing: usize,
    failures: BTreeMap<Peer, Failures>,
    next: Number,
    members_max: usize,
    /// The idle time after which a connection may be ended for a newcomer.
    spare_after_ms: u64,
}

/// An admitted newcomer, and the connection that it replaces, if any.
pub(crate) struct Admitted<C> {
    pub(crate) number: Number,
    pub(crate) displaced: Option<C>,
}

impl<C: Occupant> Admission<C> {
    pub(crate) fn new(members_max: usize, spare_after_ms: u64) -> Admission<C> {
        Admission {
            strangers: BTreeMap::new(),
            members: BTreeMap::new(),
            paired: BTreeSet::new(),
            departing: 0,
            failures: BTreeMap::new(),
            next: 0,
            members_max,
            spare_after_ms,
        }
    }

    /// The number of open connections.
    pub(crate) fn count(&self) -> usize {
        self.strangers.len() + self.members.len()
    }

    /// The number of connections whose threads have not ended.
    pub(crate) fn threads(&self) -> usize {
        self.count() + self.departing
    }

    /// All connections.
    pub(crate) fn all(&self) -> impl Iterator<Item = &C> {
        let strangers = self.strangers.values().map(|stranger| &stranger.connection);
        strangers.chain(self.members.values().map(|member| &member.connection))
    }

    /// Admits a new connection, which has until `deadline_ms` to say who it is. `None`: it is turned away.
    pub(crate) fn enter(&mut self, now_ms: u64, peer: Peer, deadline_ms: u64, connection: C) -> Option<Admitted<C>> {
        let origin = origin(peer);
        if self.departing >= DEPARTING_MAX || self.failures_of(origin, now_ms) >= FAILURES_MAX {
            return None;
        }
        let of_origin = self.strangers.values().filter(|stranger| stranger.origin == origin).count();
        let crowded = if of_origin >= STRANGERS_OF_ADDRESS_MAX {
            Some(origin)
        } else if self.strangers.len() >= STRANGERS_MAX {
            self.most_crowded()
        } else {
            None
        };
        let displaced = crowded.and_then(|crowded| self.displace_stranger(now_ms, crowded));
        self.next += 1;
        let stranger = Stranger { connection, origin, deadline_ms, has_spoken: false };
        self.strangers.insert(self.next, stranger);
        Some(Admitted { number: self.next, displaced })
    }

    fn most_crowded(&self) -> Option<Peer> {
        let mut counts: BTreeMap<Peer, usize> = BTreeMap::new();
        self.strangers.values().for_each(|stranger| *counts.entry(stranger.origin).or_default() += 1);
        counts.into_iter().max_by_key(|(_, count)| *count).map(|(origin, _)| origin)
    }

    fn displace_stranger(&mut self, now_ms: u64, origin: Peer) -> Option<C> {
        let of_origin = self.strangers.iter().filter(|(_, stranger)| stranger.origin == origin);
        // Numbers count up, so the lowest has waited longest.
        let number =
            of_origin.min_by_key(|(number, stranger)| (stranger.has_spoken, **number)).map(|(number, _)| *number)?;
        let stranger = self.strangers.remove(&number)?;
        self.departing += 1;
        self.failed(now_ms, origin);
        Some(stranger.connection)
    }

    /// Records that a stranger has sent something.
    pub(crate) fn spoke(&mut self, number: Number) {
        if let Some(stranger) = self.strangers.get_mut(&number) {
            stranger.has_spoken = true;
        }
    }

    /// A stranger has said who it is: makes it a connection of the borrower `who` of `tenant`, which may have
    /// `tenant_max` of them. Returns a connection that has to be ended to make room for it.
    pub(crate) fn promote(
        &mut self,
        now_ms: u64,
        number: Number,
        (tenant, who): (TenantId, BorrowerId),
        tenant_max: usize,
        is_pinned: bool,
    ) -> Result<Option<C>, Refusal> {
        // The stranger has just been replaced.
        let stranger = self.strangers.get(&number).ok_or(Refusal::TooManyConnections)?;
        let connection = stranger.connection.clone();
        let displaced = self.make_room(now_ms, tenant, tenant_max)?;
        self.strangers.remove(&number);
        self.members.insert(number, Member { connection, tenant, who, is_pinned });
        Ok(displaced)
    }

    /// Records that a borrower has got a queue pair.
    pub(crate) fn paired(&mut self, who: BorrowerId) {
        if self.members.values().any(|member| member.who == who) {
            self.paired.insert(who);
        }
    }

    /// Whether a borrower's queue pairs would end with this connection.
    fn has_pairs_alone(&self, member: &Member<C>) -> bool {
        let is_only_one = || self.members.values().filter(|other| other.who == member.who).nth(1).is_none();
        self.paired.contains(&member.who) && is_only_one()
    }

    fn remove_member(&mut self, number: Number) -> Option<Member<C>> {
        let member = self.members.remove(&number)?;
        if self.paired.contains(&member.who) && !self.members.values().any(|other| other.who == member.who) {
            self.paired.remove(&member.who);
        }
        Some(member)
    }

    fn make_room(&mut self, now_ms: u64, tenant: TenantId, tenant_max: usize) -> Result<Option<C>, Refusal> {
        let of = |tenant| self.members.values().filter(|member| member.tenant == tenant).count();
        let own = of(tenant);
        let is_tenant_full = own >= tenant_max;
        if !is_tenant_full && self.members.len() < self.members_max {
            return Ok(None);
        }
        // A tenant with less than its share need not wait until a connection of one with more has been idle for long.
        let mut tenants: Vec<TenantId> = self.members.values().map(|member| member.tenant).collect();
        tenants.extend([tenant]);
        tenants.sort_unstable();
        tenants.dedup();
        let share = self.members_max / tenants.len();
        let may_go = |member: &Member<C>, since: u64| {
            let idle_ms = now_ms.saturating_sub(since);
            let is_candidate = !member.is_pinned && (!is_tenant_full || member.tenant == tenant);
            let has_more = own < share && member.tenant != tenant && of(member.tenant) > share;
            is_candidate && (has_more || idle_ms >= self.spare_after_ms && !self.has_pairs_alone(member))
        };
        let idle = self
            .members
            .iter()
            .filter_map(|(number, member)| Some((member.connection.idle_since_ms()?, *number, member)));
        let longest = idle
            .filter(|(since, _, member)| may_go(member, *since))
            .min_by_key(|(since, number, member)| (self.has_pairs_alone(member), *since, *number));
        let number = longest.map(|(_, number, _)| number).ok_or(Refusal::TooManyConnections)?;
        self.departing += 1;
        Ok(self.remove_member(number).map(|member| member.connection))
    }

    /// Records that a connection's thread has ended.
    pub(crate) fn leave(&mut self, now_ms: u64, number: Number) {
        if let Some(stranger) = self.strangers.remove(&number) {
            self.failed(now_ms, stranger.origin);
        } else if self.remove_member(number).is_none() {
            self.departing = self.departing.saturating_sub(1);
        }
    }

    /// Strangers whose deadline has passed.
    pub(crate) fn overdue(&mut self, now_ms: u64) -> Vec<C> {
        let late = self.strangers.values_mut().filter(|stranger| stranger.deadline_ms <= now_ms);
        late.map(|stranger| {
            // Each is returned once: its thread ends it.
            stranger.deadline_ms = u64::MAX;
            stranger.connection.clone()
        })
        .collect()
    }

    /// The next deadline of a stranger.
    pub(crate) fn next_deadline_ms(&self) -> Option<u64> {
        self.strangers.values().map(|stranger| stranger.deadline_ms).filter(|end| *end != u64::MAX).min()
    }

    fn failures_of(&self, origin: Peer, now_ms: u64) -> u64 {
        self.failures.get(&origin).map_or(0, |failures| failures.now(now_ms))
    }

    fn least_failed(&self, now_ms: u64) -> Option<Peer> {
        self.failures.iter().min_by_key(|(_, failures)| failures.now(now_ms)).map(|(origin, _)| *origin)
    }

    fn failed(&mut self, now_ms: u64, origin: Peer) {
        if self.failures.len() >= ADDRESSES_MAX && !self.failures.contains_key(&origin) {
            self.failures.retain(|_, failures| failures.now(now_ms) > 0);
            if self.failures.len() >= ADDRESSES_MAX
                && let Some(origin) = self.least_failed(now_ms)
            {
                self.failures.remove(&origin);
            }
        }
        let failures = self.failures.entry(origin).or_default();
        *failures = Failures { count: failures.now(now_ms) + 1, at_ms: now_ms };
    }
}

/// The unit in which connections are counted: an address, an IPv6 network of 64 bits, or a user.
fn origin(peer: Peer) -> Peer {
    match peer {
        Peer::Host(IpAddr::V6(address)) => match address.to_ipv4_mapped() {
            Some(address) => Peer::Host(IpAddr::V4(address)),
            None => {
                let network = u128::from(address) & !u128::from(u64::MAX);
                Peer::Host(IpAddr::V6(Ipv6Addr::from(network)))
            }
        },
        peer => peer,
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::rc::Rc;

    use super::*;

    const ONE: TenantId = TenantId(1);
    const OTHER: TenantId = TenantId(2);
    const WHO: BorrowerId = BorrowerId(1 << 64);

    fn host(last: u8) -> Peer {
        Peer::Host(IpAddr::from([10, 0, 0, last]))
    }

    /// When it became idle.
    type Idle = Rc<Cell<Option<u64>>>;

    impl Occupant for Idle {
        fn idle_since_ms(&self) -> Option<u64> {
            self.get()
        }
    }

    fn enter(admission: &mut Admission<Idle>, now_ms: u64, peer: Peer) -> Admitted<Idle> {
        admission.enter(now_ms, peer, now_ms + 100, Idle::default()).expect("it is not turned away")
    }

    fn member(admission: &mut Admission<Idle>, now_ms: u64, tenant: TenantId) -> Result<Idle, Refusal> {
        let idle = Idle::default();
        let number = admission.enter(now_ms, host(1), now_ms + 100, idle.clone()).unwrap().number;
        admission.promote(now_ms, number, (tenant, BorrowerId(number.into())), 100, false).map(|_| idle)
    }

    /// A connection of this borrower that has been idle since 0.
    fn idle(admission: &mut Admission<Idle>, tenant: TenantId, who: BorrowerId) -> Result<(), Refusal> {
        let number = admission.enter(0, host(1), 100, Idle::new(Cell::new(Some(0)))).unwrap().number;
        admission.promote(0, number, (tenant, who), 100, false).map(|_| ())
    }

    #[test]
    fn an_address_displaces_its_own_strangers_and_those_that_are_silent_first() {
        let mut admission = Admission::new(10, 1000);
        let first = enter(&mut admission, 0, host(1)).number;
        admission.spoke(first);
        for _ in 1..STRANGERS_OF_ADDRESS_MAX {
            assert!(enter(&mut admission, 0, host(1)).displaced.is_none());
        }
        enter(&mut admission, 0, host(2));
        for _ in 0..3 {
            assert!(enter(&mut admission, 0, host(1)).displaced.is_some());
        }
        assert_eq!(admission.count(), STRANGERS_OF_ADDRESS_MAX + 1);
        assert!(admission.promote(0, first, (ONE, WHO), 100, false).is_ok(), "who speaks stays longest");
        assert_eq!(admission.threads(), admission.count() + 3);
    }

    #[test]
    fn many_addresses_share_one_pool() {
        let mut admission = Admission::new(10, 1000);
        for address in 0..STRANGERS_MAX {
            enter(&mut admission, 0, host((address % 200) as u8));
        }
        assert!(enter(&mut admission, 0, host(201)).displaced.is_some());
        assert_eq!(admission.count(), STRANGERS_MAX);
        assert_eq!(admission.next_deadline_ms(), Some(100));
        assert_eq!(admission.overdue(100).len(), STRANGERS_MAX);
        assert_eq!((admission.overdue(100).len(), admission.next_deadline_ms()), (0, None));
    }

    #[test]
    fn an_address_that_keeps_failing_is_turned_away_for_a_while() {
        let mut admission = Admission::new(10, 1000);
        for _ in 0..FAILURES_MAX {
            let number = enter(&mut admission, 0, host(1)).number;
            admission.leave(0, number);
        }
        assert!(admission.enter(0, host(1), 100, Idle::default()).is_none());
        assert!(admission.enter(0, host(2), 100, Idle::default()).is_some());
        assert!(admission.enter(1000, host(1), 100, Idle::default()).is_some());
    }

    /// The table of failures dropped the lowest address, which a crowd of others could free in this way.
    #[test]
    fn a_crowd_does_not_make_an_address_that_keeps_failing_forgotten() {
        let mut admission = Admission::new(10, 1000);
        let fail = |admission: &mut Admission<Idle>, peer| {
            let number = enter(admission, 0, peer).number;
            admission.leave(0, number);
        };
        (0..FAILURES_MAX).for_each(|_| fail(&mut admission, host(1)));
        for address in 0..2 * ADDRESSES_MAX as u32 {
            fail(&mut admission, Peer::Host(IpAddr::V4((0x0b00_0000 + address).into())));
        }
        assert!(admission.enter(0, host(1), 100, Idle::default()).is_none());
        assert_eq!(admission.failures.len(), ADDRESSES_MAX);
    }

    #[test]
    fn an_idle_connection_makes_room_and_a_busy_one_does_not() {
        let mut admission = Admission::new(2, 1000);
        let (one, two) = (member(&mut admission, 0, ONE).unwrap(), member(&mut admission, 0, ONE).unwrap());
        assert_eq!(member(&mut admission, 0, ONE), Err(Refusal::TooManyConnections));
        one.set(Some(0));
        assert_eq!(member(&mut admission, 500, ONE), Err(Refusal::TooManyConnections), "it is not idle for long");
        assert!(member(&mut admission, 1000, ONE).is_ok());
        two.set(Some(1000));
        assert!(member(&mut admission, 1100, OTHER).is_ok(), "another tenant has none yet");
    }

    #[test]
    fn a_pinned_connection_stays_and_a_tenant_has_its_own_bound() {
        let mut admission = Admission::new(1, 0);
        let idle = Idle::new(Cell::new(Some(0)));
        let number = admission.enter(0, host(1), 100, idle).unwrap().number;
        admission.promote(0, number, (ONE, WHO), 100, true).unwrap();
        assert_eq!(member(&mut admission, 5000, OTHER), Err(Refusal::TooManyConnections));
        let mut admission = Admission::new(10, 1000);
        member(&mut admission, 0, ONE).unwrap();
        let number = enter(&mut admission, 0, host(1)).number;
        assert!(admission.promote(0, number, (ONE, WHO), 1, false).is_err());
        let number = enter(&mut admission, 0, host(1)).number;
        assert!(admission.promote(0, number, (OTHER, WHO), 1, false).is_ok());
    }

    /// At a donor with RDMA every connection was pinned, so one tenant could lock all others out.
    #[test]
    fn only_the_last_connection_of_a_borrower_with_queue_pairs_stays_however_idle() {
        let mut admission = Admission::new(4, 1000);
        (0..2).for_each(|_| idle(&mut admission, ONE, WHO).unwrap());
        (10..12).for_each(|who| idle(&mut admission, OTHER, BorrowerId(who)).unwrap());
        admission.paired(WHO);
        // The one with queue pairs has two; the others have none.
        (0..3).for_each(|_| _ = member(&mut admission, 1000, OTHER).unwrap());
        assert_eq!(member(&mut admission, 9000, OTHER), Err(Refusal::TooManyConnections));
        assert_eq!(admission.members.values().filter(|member| member.who == WHO).count(), 1);
        assert_eq!(admission.paired.len(), 1);
        let last = *admission.members.iter().find(|(_, member)| member.who == WHO).unwrap().0;
        admission.leave(9000, last);
        assert!(admission.paired.is_empty(), "its queue pairs end with it");
        admission.paired(WHO);
        assert!(admission.paired.is_empty(), "it is gone");
    }

    #[test]
    fn queue_pairs_give_a_tenant_no_more_than_its_share() {
        let mut admission = Admission::new(4, 1000);
        for who in (0..4).map(BorrowerId) {
            idle(&mut admission, ONE, who).unwrap();
            admission.paired(who);
        }
        assert_eq!(member(&mut admission, 9000, ONE), Err(Refusal::TooManyConnections));
        assert!(member(&mut admission, 9000, OTHER).is_ok() && member(&mut admission, 9000, OTHER).is_ok());
        assert_eq!(member(&mut admission, 9000, OTHER), Err(Refusal::TooManyConnections), "each has half");
    }
}

// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! A few links to a donor, which threads take in turns, and the state that they share.
//!
//! The first free link is taken, so a program with one thread has one connection. A link is taken by a compare and
//! exchange; a thread that finds none free waits on a futex for one, within a time limit.
//!
//! A donor may have no room for another connection, or be unreachable for new ones. While one link is connected, all
//! threads continue over it: if a connection cannot be opened, the request does not fail but waits for a connected
//! link, and new connections are tried now and then. The background workers open a connection only when threads that
//! wait for a fault have one, and give it up when these have none.
//!
//! After fork(2) the child gets its own sockets under the same numbers before the program's code runs in it, because
//! two processes on one stream would read each other's answers. A child that was created without our knowledge is
//! detected by a word that fork(2) clears, and refused.
//!
//! Next on the path: `link.rs`, one request and its answer.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use aquifer_sys::futex::EventCount;
use aquifer_sys::memory::OwnWord;
use aquifer_sys::own_descriptors::KeptFile;
use aquifer_sys::raw::{Errno, current_cpu, now_ns};
use aquifer_sys::signals::{self, HEEDED_WITHIN};
use aquifer_sys::words::Words;
use aquifer_wire::{BorrowerId, Message, Refusal};

use super::channel::{Miss, Security};
use super::deadline::Deadline;
use super::endpoint::Endpoint;
use super::incarnation::{Greeter, Incarnation};
use super::link::{Greeting, Link};
use super::recalls::Recalls;
use super::timeouts::Timeouts;
use super::transport::Loss;
use crate::access_failure::LinkFailure;

/// How many times to check for a free link before waiting in the kernel: some microseconds, as long as a round trip.
const SPINS: u32 = 200;

/// How long to wait before trying again to open a connection, if the last attempt failed and another connection exists.
const CROWDED_PAUSE: Duration = Duration::from_millis(250);
/// The pause between a starting program's attempts to greet a donor that has no room.
const GREET_PAUSE: Duration = Duration::from_millis(100);
/// How often files with credentials are looked at: as often as donors look at theirs.
pub(crate) const REFRESH_EVERY: Duration = Duration::from_secs(2);

const FREE: u32 = 0;
const TAKEN: u32 = 1;

struct Line {
    link: Link,
    taken: AtomicU32,
}

/// The links of a process to one donor, which its threads share.
pub(crate) struct Links {
    endpoint: Endpoint,
    who: BorrowerId,
    security: Security,
    recalls: Arc<Recalls>,
    timeouts: Timeouts,
    lines: Box<[Line]>,
    /// Signalled when a link becomes free.
    freed: EventCount,
    /// Shared by related processes, as the leases are.
    incarnation: Incarnation,
    /// One word that related processes share: the token of the reservation from which they borrow; 0 for none.
    reservation: Words,
    /// 1 in the process that owns these sockets.
    own: Arc<OwnWord>,
    /// How long the donor's leases last, as it said in its last greeting, in milliseconds; 0 before the first one.
    lease_ms: AtomicU64,
    /// If a connection exists, no further one is tried before this time.
    crowded_until_ns: AtomicU64,
    /// Whether the donor had no room for a connection while threads that wait for a fault had none.
    is_starved: AtomicBool,
}

/// A link that this thread has taken.
struct Taken<'a> {
    links: &'a Links,
    line: &'a Line,
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        // Release pairs with the Acquire of the exchange in `take`: the next thread sees the link as this one leaves
        // it.
        self.line.taken.store(FREE, Ordering::Release);
        self.links.freed.signal();
    }
}

/// A request whose answer is on its way. Dropping it before the answer has arrived ends the connection, because the
/// link's next request would receive that answer.
pub(crate) struct Begun<'a> {
    taken: Taken<'a>,
    request: u64,
    deadline: Deadline,
    is_finished: bool,
}

impl Begun<'_> {
    /// Readable when the answer, or its beginning, has arrived.
    pub(crate) fn socket(&self) -> BorrowedFd<'_> {
        self.taken.line.link.socket()
    }

    /// Waits for the answer, whose body fills `into`.
    pub(crate) fn finish(mut self, into: &mut [u8]) -> Result<Message, Loss> {
        self.is_finished = true;
        let Taken { links, line } = &self.taken;
        line.link.finish(&links.endpoint, self.request, into, self.deadline)
    }
}

impl Drop for Begun<'_> {
    fn drop(&mut self) {
        if !self.is_finished {
            self.taken.line.link.disconnect(&self.taken.links.endpoint);
        }
    }
}

fn own_word() -> Result<Arc<OwnWord>, Errno> {
    let own = OwnWord::new()?;
    own.word().store(1, Ordering::Relaxed);
    Ok(Arc::new(own))
}

impl Links {
    /// Creates the sockets of `count` links. Connects nothing.
    pub(crate) fn new(
        count: usize,
        endpoint: Endpoint,
        security: Security,
        who: BorrowerId,
        timeouts: Timeouts,
    ) -> Result<Links, Errno> {
        let own = own_word()?;
        let recalls = Arc::new(Recalls::default());
        let link = |_| Link::new(&endpoint, security.channel(&own), &recalls, true);
        let links = (0..count).map(link).map(|link| link.map_err(|errno| Errno(errno.raw_os_error())));
        let links = links.collect::<Result<Vec<Link>, Errno>>()?;
        Self::of(links, own, recalls, endpoint, security, who, timeouts)
    }

    /// Links on sockets that were created earlier. Connects nothing.
    pub(crate) fn on_sockets(
        sockets: &[Arc<KeptFile>],
        endpoint: Endpoint,
        security: Security,
        who: BorrowerId,
        timeouts: Timeouts,
    ) -> Result<Links, Errno> {
        let own = own_word()?;
        let recalls = Arc::new(Recalls::default());
        let link = |socket| Link::with_socket(Arc::clone(socket), &endpoint, security.channel(&own), &recalls);
        let links = sockets.iter().map(link).collect();
        Self::of(links, own, recalls, endpoint, security, who, timeouts)
    }

    fn of(
        links: Vec<Link>,
        own: Arc<OwnWord>,
        recalls: Arc<Recalls>,
        endpoint: Endpoint,
        security: Security,
        who: BorrowerId,
        timeouts: Timeouts,
    ) -> Result<Links, Errno> {
        let lines = links.into_iter().map(|link| Line { link, taken: AtomicU32::new(FREE) }).collect();
        Ok(Links {
            endpoint,
            who,
            security,
            recalls,
            timeouts,
            lines,
            freed: EventCount::new(),
            incarnation: Incarnation::new()?,
            reservation: Words::shared(1)?,
            own,
            lease_ms: AtomicU64::new(0),
            crowded_until_ns: AtomicU64::new(0),
            is_starved: AtomicBool::new(false),
        })
    }

    /// Connects the first link, to receive the donor's greeting.
    pub(crate) fn greet(&self) -> Result<Greeting, Miss> {
        let taken = self.take()?;
        let deadline = Deadline::after(self.timeouts.loss);
        loop {
            // While a program is starting, it waits longer than when it is running.
            match self.connect_within(&taken.line.link, &Timeouts::ALONE) {
                Err(miss) if miss.may_pass() && deadline.check().is_ok() => signals::sleep(GREET_PAUSE),
                greeted => return greeted,
            }
        }
    }

    /// Reads the files of the credentials again if they have changed. Returns whether other contents are in use now;
    /// `None` if there are no such files.
    pub(crate) fn refresh(&self) -> Option<bool> {
        let Security::Tls(borrower) = &self.security else { return None };
        let has_changed = borrower.refresh();
        if has_changed {
            self.end_revoked();
        }
        Some(has_changed)
    }

    /// Ends the connections to a donor whose certificate is revoked now. One that a thread uses at this moment ends
    /// before its next request, as those of queues do.
    fn end_revoked(&self) {
        for line in self.lines.iter().filter(|line| self.is_own() && line.link.may_be_connected()) {
            if line.taken.compare_exchange(FREE, TAKEN, Ordering::Acquire, Ordering::Relaxed).is_ok() {
                let taken = Taken { links: self, line };
                self.is_connected(&taken.line.link);
            }
        }
    }

    /// Why changed files of the credentials cannot be used, once.
    pub(crate) fn take_notice(&self) -> Option<String> {
        let Security::Tls(borrower) = &self.security else { return None };
        let failure = borrower.take_failure()?;
        Some(format!("{failure}; until then, new connections to donors use the files as they were read before"))
    }

    /// The record of the donor's notices that it is reclaiming memory.
    pub(crate) fn recalls(&self) -> &Arc<Recalls> {
        &self.recalls
    }

    pub(crate) fn timeouts(&self) -> &Timeouts {
        &self.timeouts
    }

    /// Borrows from the reservation with this token from now on.
    pub(crate) fn borrow_from(&self, token: u64) {
        self.reservation[0].store(token, Ordering::SeqCst);
    }

    /// Borrows from the reservation whose token is in the first word, and follows changes of the word. The leases are
    /// those of the run in the other words: if another one has greeted, its connections end, and the next greeting
    /// reports the restart.
    pub(crate) fn follow(&mut self, reservation: Words, incarnation: Words) {
        self.reservation = reservation;
        if !self.incarnation.follow(incarnation) {
            self.lines.iter().for_each(|line| line.link.disconnect(&self.endpoint));
        }
    }

    /// Whether there is a connection for the current reservation. Closes a connection for another reservation, because
    /// its donor would refuse every request. Must be called while no request is in flight.
    pub(crate) fn is_connected(&self, link: &Link) -> bool {
        if link.may_be_connected() && link.reservation() != self.reservation[0].load(Ordering::SeqCst) {
            link.disconnect(&self.endpoint);
        }
        link.is_connected(&self.endpoint)
    }

    /// The run of the donor that has granted the leases.
    pub(crate) fn incarnation(&self) -> &Incarnation {
        &self.incarnation
    }

    pub(crate) fn connect(&self, link: &Link) -> Result<Greeting, Miss> {
        self.connect_within(link, &self.timeouts)
    }

    fn connect_within(&self, link: &Link, timeouts: &Timeouts) -> Result<Greeting, Miss> {
        let token = self.reservation[0].load(Ordering::SeqCst);
        let run = self.incarnation.run();
        let greeting = link.connect(&self.endpoint, self.who.in_reservation(token), timeouts);
        let greeting = greeting.map_err(|miss| self.judge(miss, token, run))?;
        let failure = match self.incarnation.meet(run, greeting.instance) {
            Greeter::Known => {
                self.lease_ms.store(greeting.lease.as_millis() as u64, Ordering::Relaxed);
                return Ok(greeting);
            }
            // The donor was restarted, and has lost everything that was stored before.
            Greeter::Later => LinkFailure::Restarted,
            Greeter::Unclear => LinkFailure::Ended,
        };
        link.disconnect(&self.endpoint);
        Err(Loss::Connection(failure).into())
    }

    /// A donor that knew the reservation and no longer knows it was restarted, and has lost all stored bytes.
    /// `run` was the known run when the connection was begun.
    fn judge(&self, miss: Miss, token: u64, run: u64) -> Miss {
        let is_unknown = token != 0 && matches!(miss, Miss::Refused(Refusal::NoLease | Refusal::NotYours));
        // Unless the donor has joined again meanwhile, with another reservation.
        let is_over = is_unknown && self.reservation[0].load(Ordering::SeqCst) == token;
        if is_over && self.incarnation.find_over(run) == Greeter::Later {
            return Loss::Connection(LinkFailure::Restarted).into();
        }
        miss
    }

    /// How long the donor's leases last; `None` before the first greeting.
    pub(crate) fn lease(&self) -> Option<Duration> {
        let lease_ms = self.lease_ms.load(Ordering::Relaxed);
        (lease_ms != 0).then(|| Duration::from_millis(lease_ms))
    }

    /// The address on this machine from which the donor is reached, if a link is connected.
    pub(crate) fn local_ip(&self) -> Option<IpAddr> {
        let connected = self.lines.iter().find(|line| line.link.may_be_connected())?;
        let address = rustix::net::getsockname(connected.link.socket()).ok()?;
        SocketAddr::try_from(address).ok().map(|address| address.ip().to_canonical())
    }

    pub(crate) fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    pub(crate) fn is_own(&self) -> bool {
        self.own.word().load(Ordering::Relaxed) == 1
    }

    /// The links, starting with this CPU's. A donor on this machine has a thread for each link, and the kernel wakes
    /// that thread on the CPU where it last ran: with the same link for the same CPU, no other CPU has to be woken.
    fn in_order(&self) -> impl Iterator<Item = &Line> {
        let (before, from) = self.lines.split_at(current_cpu() % self.lines.len());
        from.iter().chain(before)
    }

    /// Takes a link that is free and connected.
    fn take_connected(&self) -> Option<Taken<'_>> {
        let may_be_taken = |line: &&Line| {
            let take = || line.taken.compare_exchange(FREE, TAKEN, Ordering::Acquire, Ordering::Relaxed).is_ok();
            self.is_own() && line.link.may_be_connected() && take()
        };
        let taken = self.in_order().find(may_be_taken).map(|line| Taken { links: self, line })?;
        self.is_connected(&taken.line.link).then_some(taken)
    }

    /// Whether there seems to be a connection for demand.
    fn any_connected(&self) -> bool {
        self.lines.iter().any(|line| line.link.may_be_connected())
    }

    /// Whether threads have to use the existing connections.
    fn is_crowded(&self) -> bool {
        now_ns() < self.crowded_until_ns.load(Ordering::Relaxed) && self.any_connected()
    }

    /// Records that a connection could not be opened.
    fn crowd(&self) {
        self.crowded_until_ns.store(now_ns() + CROWDED_PAUSE.as_nanos() as u64, Ordering::Relaxed);
    }

    /// Whether the background workers have to give their connection up, so that waiting threads get one.
    pub(crate) fn is_starved(&self) -> bool {
        self.is_starved.load(Ordering::Relaxed)
    }

    /// Connects a queue's link, if demand has a connection. Returns whether it is connected.
    pub(crate) fn connect_beside(&self, link: &Link) -> bool {
        if !self.any_connected() || self.is_crowded() {
            return false;
        }
        let is_connected = self.connect(link).is_ok();
        if !is_connected {
            self.crowd();
        }
        is_connected
    }

    fn take(&self) -> Result<Taken<'_>, Loss> {
        if !self.is_own() {
            return Err(Loss::Connection(LinkFailure::Inherited));
        }
        let started = now_ns();
        loop {
            let ticket = self.freed.ticket();
            let free =
                |line: &&Line| line.taken.compare_exchange(FREE, TAKEN, Ordering::Acquire, Ordering::Relaxed).is_ok();
            let connected = |line: &&Line| line.link.may_be_connected() && free(line);
            let other = || if self.is_crowded() { None } else { self.in_order().find(free) };
            if let Some(line) = self.in_order().find(connected).or_else(other) {
                return Ok(Taken { links: self, line });
            }
            if now_ns().saturating_sub(started) > self.timeouts.other_request().as_nanos() as u64 {
                return Err(Loss::Connection(LinkFailure::TimedOut));
            }
            self.freed.spin_then_sleep(ticket, SPINS, HEEDED_WITHIN);
            signals::end_if_asked();
        }
    }

    /// Creates a link for a queue, not connected yet.
    pub(crate) fn new_link(&self) -> Result<Link, Errno> {
        let link = Link::new(&self.endpoint, self.security.channel(&self.own), &self.recalls, false);
        link.map_err(|errno| Errno(errno.raw_os_error()))
    }

    /// Sends one request and receives its answer, on the first free link.
    pub(crate) fn ask(&self, message: Message, payload: &[u8], into: &mut [u8]) -> Result<Message, Loss> {
        let taken = self.take_open()?;
        taken.line.link.exchange(&self.endpoint, message, payload, into, &self.timeouts)
    }

    /// Takes a link and connects it if necessary.
    fn take_open(&self) -> Result<Taken<'_>, Loss> {
        let deadline = Deadline::after(self.timeouts.other_request());
        loop {
            let taken = self.take()?;
            let link = &taken.line.link;
            if self.is_connected(link) {
                return Ok(taken);
            }
            let miss = match self.connect(link) {
                Ok(_) => {
                    self.is_starved.store(false, Ordering::Relaxed);
                    return Ok(taken);
                }
                Err(miss) => miss,
            };
            self.crowd();
            match Loss::from(miss) {
                // Not the error of a late answer: a donor that does not even answer a greeting is not asked again.
                Loss::Connection(LinkFailure::TimedOut) => return Err(Loss::Connection(LinkFailure::NoGreeting)),
                // Another link is connected: this thread waits for it to become free.
                loss if loss.may_pass() && self.any_connected() => deadline.check()?,
                loss => {
                    self.is_starved.store(miss.may_pass(), Ordering::Relaxed);
                    return Err(loss);
                }
            }
        }
    }

    /// Sends a request without waiting for its answer, if a connection can be used immediately.
    pub(crate) fn begin(&self, message: Message, payload: &[u8]) -> Option<Begun<'_>> {
        let taken = self.take_connected()?;
        let deadline = Deadline::after(self.timeouts.answer);
        let request = taken.line.link.begin(&self.endpoint, message, payload, deadline).ok()?;
        Some(Begun { taken, request, deadline, is_finished: false })
    }

    /// Called in a forked child: replaces the parent's sockets by new ones. Returns whether there was anything to do.
    pub(crate) fn replace_in_child(&self) -> Result<bool, Errno> {
        if self.is_own() {
            return Ok(false);
        }
        let mut usable = 0;
        for line in &self.lines {
            // A thread of the parent may have taken the link. If that thread was using the channel, the link cannot be
            // used in the child.
            let is_usable = line.link.replace_in_child(&self.endpoint)?;
            line.taken.store(if is_usable { FREE } else { TAKEN }, Ordering::Relaxed);
            usable += usize::from(is_usable);
        }
        if usable == 0 {
            return Err(Errno(libc::EAGAIN));
        }
        self.crowded_until_ns.store(0, Ordering::Relaxed);
        self.is_starved.store(false, Ordering::Relaxed);
        self.own.word().store(1, Ordering::Release);
        Ok(true)
    }
}

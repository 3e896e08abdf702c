// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! A donor as a member of an array (`array.rs`). The array knows where slabs are, and keeps several copies where it
//! can.
//!
//! Threads: any, including signal handlers, except for opening.

use std::net::{SocketAddr, ToSocketAddrs};
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use aquifer_sys::own_descriptors::KeptFile;
use aquifer_sys::raw::Errno;
use aquifer_tier::{Activity, Cause, KeepAlive, TierFailure, TierQueue};
use aquifer_wire::{BorrowerId, Message, RangeIndex, SLAB_BYTES};

use super::endpoint::Endpoint;
use super::link::Greeting;
use super::links::{Begun, Links};
use super::ranges::{Lease, Ranges, Writers};
use super::remote::{Piece, Remote, Unlent};
use super::tcp;
use super::timeouts::Timeouts;
use super::transport::Loss;
use super::{failure, greet, network, not_greeted, remote, security, system, who};
use crate::access_failure::{AccessFailure, LinkFailure};
use crate::array::{Room, SeatWords, Store};
use crate::borrow_failure::BorrowFailure;
use crate::spec::DonorSpec;

/// The lease time assumed for a donor that has not stated one: the default of donors.
const LEASE_UNKNOWN: Duration = Duration::from_secs(60);

/// A donor that has been asked how much it lends.
pub(crate) struct Offer {
    links: Links,
    greeting: Result<Greeting, BorrowFailure>,
    timeouts: Timeouts,
    spec: DonorSpec,
}

impl Offer {
    /// Asks the donor. A donor that does not answer is accepted if others have its bytes, too, because it may come
    /// back.
    pub(crate) fn ask(spec: &DonorSpec, is_redundant: bool) -> Result<Offer, BorrowFailure> {
        let timeouts = if is_redundant { Timeouts::AMONG_OTHERS } else { Timeouts::ALONE };
        match greet(spec, timeouts) {
            Ok((links, greeting)) => Ok(Offer { links, greeting: Ok(greeting), timeouts, spec: spec.clone() }),
            Err(refused @ BorrowFailure::NoAnswer { .. }) if is_redundant => {
                let Some(address) = spec.address.to_socket_addrs().ok().and_then(|mut all| all.next()) else {
                    return Err(refused);
                };
                let who = who(spec)?;
                let security = security(spec).map_err(|failure| BorrowFailure::Credentials { failure })?;
                let links = Links::new(tcp::LINKS, Endpoint::Tcp(address), security, who, timeouts)
                    .map_err(|errno| system("making sockets", errno))?;
                Ok(Offer { links, greeting: Err(refused), timeouts, spec: spec.clone() })
            }
            Err(refused) => Err(refused),
        }
    }

    /// Asks the donor over sockets that were created earlier, as the borrower `who`. A donor that does not answer is
    /// accepted as by [`ask`](Self::ask).
    pub(crate) fn ask_on(
        sockets: &[Arc<KeptFile>],
        address: SocketAddr,
        spec: &DonorSpec,
        who: BorrowerId,
        is_redundant: bool,
    ) -> Result<Offer, BorrowFailure> {
        let timeouts = if is_redundant { Timeouts::AMONG_OTHERS } else { Timeouts::ALONE };
        let security = security(spec).map_err(|failure| BorrowFailure::Credentials { failure })?;
        let links = Links::on_sockets(sockets, Endpoint::Tcp(address), security, who, timeouts)
            .map_err(|errno| system("making links", errno))?;
        links.borrow_from(spec.reservation);
        let greeting = links.greet().map_err(|miss| not_greeted(spec, miss));
        match greeting {
            Err(refused) if !is_redundant || !matches!(refused, BorrowFailure::NoAnswer { .. }) => Err(refused),
            greeting => Ok(Offer { links, greeting, timeouts, spec: spec.clone() }),
        }
    }

    /// The number of slabs that it lends; `None` if it has not answered.
    pub(crate) fn slabs(&self) -> Option<u64> {
        self.greeting.as_ref().ok().map(|greeting| greeting.lendable_bytes / SLAB_BYTES)
    }

    /// Identifies the donor's run; `None` if it has not answered.
    pub(crate) fn run(&self) -> Option<u64> {
        self.greeting.as_ref().ok().map(|greeting| greeting.instance)
    }

    /// Why the donor has not answered; `None` if it has.
    pub(crate) fn why_absent(self) -> Option<BorrowFailure> {
        self.greeting.err()
    }

    /// The donor as a member of an array of `slabs` slabs.
    pub(crate) fn accept(self, slabs: usize, writers: Writers) -> Result<Share, BorrowFailure> {
        let transport = network(&self.spec, self.links, self.greeting.is_ok())?;
        let lease = self.greeting.map_or(LEASE_UNKNOWN, |greeting| greeting.lease);
        let remote = remote(transport, lease, slabs, self.timeouts, Unlent::Gone, writers)?;
        Ok(Share(remote, self.spec.address))
    }

    /// The donor as a member that joins an array, with leases in words that related processes share. `is_opener`: this
    /// process has opened the array.
    pub(crate) fn join(mut self, words: SeatWords, is_opener: bool) -> Result<Share, BorrowFailure> {
        self.links.follow(words.reservation, words.incarnation);
        let transport = network(&self.spec, self.links, self.greeting.is_ok())?;
        let lease = self.greeting.map_or(LEASE_UNKNOWN, |greeting| greeting.lease);
        let ranges = Ranges::over(words.leases, words.doubted);
        let remote = Remote::new(transport, ranges, lease, self.timeouts, Unlent::Gone, is_opener);
        Ok(Share(Arc::new(remote), self.spec.address))
    }
}

/// One donor as a member of an array, with the donor's address as the user wrote it.
pub(crate) struct Share(Arc<Remote>, String);

/// Bytes that a donor was asked for, or was sent. Dropping this before the donor has answered costs the link its
/// connection.
pub(crate) struct Asked<'a> {
    remote: &'a Remote,
    begun: Begun<'a>,
    sent: Option<Sent<'a>>,
}

/// A write in flight. Unless its outcome is known, it may still arrive.
struct Sent<'a> {
    ranges: &'a Ranges,
    range: RangeIndex,
    lease: Lease,
}

impl Drop for Sent<'_> {
    fn drop(&mut self) {
        self.ranges.doubt(self.range, self.lease);
    }
}

/// Why a request did not succeed. If the reason persists, `read` and `write` report it in detail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Missed {
    /// The donor is present, and has refused the request.
    Refused,
    /// The donor has not answered within its time limit.
    Silent,
    /// The connection has ended.
    Broken,
}

impl Asked<'_> {
    /// Readable when the answer arrives.
    pub(crate) fn socket(&self) -> BorrowedFd<'_> {
        self.begun.socket()
    }

    /// Waits for the answer, whose bytes fill `into`.
    pub(crate) fn finish(self, into: &mut [u8]) -> Result<(), Missed> {
        let expected = if self.sent.is_some() { Message::Written } else { Message::Found };
        let outcome = self.remote.finish(self.begun, into, expected);
        if outcome.is_ok() {
            // The write has arrived.
            std::mem::forget(self.sent);
        }
        outcome.map_err(|loss| match loss {
            Loss::Refused(_) => Missed::Refused,
            Loss::Connection(LinkFailure::TimedOut) => Missed::Silent,
            Loss::Connection(_) => Missed::Broken,
        })
    }
}

impl Store for Share {
    fn name(&self) -> &str {
        &self.1
    }

    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), AccessFailure> {
        self.0.read_bytes(offset, into)
    }

    fn begin_read(&self, piece: Piece) -> Option<Asked<'_>> {
        let begun = self.0.begin_read(piece)?;
        Some(Asked { remote: &self.0, begun, sent: None })
    }

    fn begin_write(&self, piece: Piece, bytes: &[u8]) -> Option<Asked<'_>> {
        let (begun, lease) = self.0.begin_write(piece, bytes)?;
        let sent = Sent { ranges: self.0.ranges(), range: piece.range, lease };
        Some(Asked { remote: &self.0, begun, sent: Some(sent) })
    }

    fn take(&self, range: RangeIndex) -> Result<(), AccessFailure> {
        self.0.take(range)
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), AccessFailure> {
        self.0.write_bytes(offset, bytes)
    }

    fn discard(&self, offset: u64, len: u64) -> Result<(), AccessFailure> {
        self.0.discard(offset, len)
    }

    fn leaving(&self, from: RangeIndex) -> Option<RangeIndex> {
        self.0.ranges().leaving(from).map(|(range, _)| range)
    }

    fn room(&self, range: RangeIndex) -> Option<Room> {
        self.0.ranges().lease(range).map(|lease| Room(lease.word()))
    }

    fn give_back(&self, range: RangeIndex, room: Room) -> Result<(), AccessFailure> {
        self.0.give_back(range, Lease::of_word(room.0))
    }

    fn open_queue(&self, depth: u32) -> Result<Box<dyn TierQueue>, TierFailure> {
        self.0.open_queue(depth).map_err(|Errno(errno)| failure(Activity::Queue, 0, Cause::Errno(errno)))
    }

    fn after_fork_in_child(&self) -> Result<(), Errno> {
        self.0.after_fork_in_child()
    }

    fn look(&self) -> Result<(), AccessFailure> {
        self.0.look()
    }

    fn begin_keep_alive(&self) -> Option<Box<dyn KeepAlive + '_>> {
        self.0.begin_keep_alive()
    }

    fn look_every(&self) -> Duration {
        self.0.renewal()
    }

    fn refresh(&self) {
        // An array has a turn at least once a second.
        let _ = self.0.refresh();
    }

    fn take_notice(&self) -> Option<String> {
        self.0.take_notice()
    }

    fn start_over(&self, forget: &dyn Fn(&dyn Fn() -> bool)) -> bool {
        self.0.start_over(forget)
    }

    fn run(&self) -> u64 {
        self.0.run()
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{Shutdown, TcpListener, TcpStream};
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

    use aquifer_sys::words::Words;
    use aquifer_wire::{HEADER_BYTES, Header};

    use super::super::{INCARNATION_WORDS, SpareSockets};
    use super::*;
    use crate::spec::DonorSecurity;

    const RESTARTED: Result<(), AccessFailure> = Err(AccessFailure::Link(LinkFailure::Restarted));
    const RANGES: usize = 8;

    /// A donor that greets, and answers renewals.
    struct Donor {
        address: SocketAddr,
        instance: AtomicU64,
        lease_ms: AtomicU32,
        streams: Mutex<Vec<TcpStream>>,
    }

    impl Donor {
        fn start() -> Arc<Donor> {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let address = listener.local_addr().unwrap();
            let donor = Arc::new(Donor {
                address,
                instance: AtomicU64::new(11),
                lease_ms: AtomicU32::new(60_000),
                streams: Mutex::default(),
            });
            let shared = Arc::clone(&donor);
            std::thread::spawn(move || {
                for stream in listener.incoming().flatten() {
                    shared.streams.lock().unwrap().push(stream.try_clone().unwrap());
                    let (donor, instance) = (Arc::clone(&shared), shared.instance.load(Ordering::SeqCst));
                    std::thread::spawn(move || while donor.answer(&stream, instance).is_ok() {});
                }
            });
            donor
        }

        fn answer(&self, mut stream: &TcpStream, instance: u64) -> std::io::Result<()> {
            let mut header = [0; HEADER_BYTES];
            stream.read_exact(&mut header)?;
            let header = Header::decode(&header).unwrap();
            let answer = match header.message {
                Message::Hello { .. } => {
                    let lease_ms = self.lease_ms.load(Ordering::SeqCst);
                    let lendable_bytes = RANGES as u64 * SLAB_BYTES;
                    Message::Welcome { version: 1, lease_ms, instance, first_request: 5, lendable_bytes }
                }
                _ => Message::Renewed { leases: 1, expires_in_ms: 60_000 },
            };
            stream.write_all(&Header::new(header.request, answer, &[]).encode())
        }

        fn restart(&self) {
            self.instance.fetch_add(1, Ordering::SeqCst);
            self.streams.lock().unwrap().drain(..).for_each(|stream| _ = stream.shutdown(Shutdown::Both));
        }
    }

    /// What related processes share: each of them has joined the donor by itself.
    struct Family {
        words: Words,
        spares: SpareSockets,
    }

    impl Family {
        fn new() -> Family {
            let spares = SpareSockets::new(SocketAddr::from(([127, 0, 0, 1], 0)), 3);
            Family { words: Words::shared(RANGES + 1 + INCARNATION_WORDS).unwrap(), spares }
        }

        fn join(&self, donor: &Donor) -> Share {
            let (address, security) = (donor.address.to_string(), DonorSecurity::Plain);
            let spec = DonorSpec { address, size: None, security, rdma: None, tree: None, reservation: 0 };
            let taken = self.spares.take().unwrap();
            let offer = Offer::ask_on(taken.sockets(), donor.address, &spec, BorrowerId(1 << 100), true).unwrap();
            taken.keep();
            let (leases, others) = self.words.split_at(RANGES);
            let (reservation, incarnation) = others.split_at(1);
            let words = SeatWords { leases, doubted: None, reservation, incarnation };
            offer.join(words, false).unwrap()
        }
    }

    /// A process that joined a member after its donor's restart took what it found there for what its family had
    /// stored, and a process that had joined before dropped what the first one stored then.
    #[test]
    fn a_process_that_joins_later_notices_that_the_donor_was_restarted() {
        let (family, donor) = (Family::new(), Donor::start());
        let first = family.join(&donor);
        donor.restart();
        assert_eq!(family.join(&donor).look(), RESTARTED);
        assert_eq!(first.look(), RESTARTED);
        assert!(first.start_over(&|_| {}));
        assert_eq!(family.join(&donor).look(), Ok(()), "what the family stores from now on is there");
    }

    /// Two processes noticed the restart. The second one forgot the leases of what the first one had stored again by
    /// then, and the slabs were lost.
    #[test]
    fn what_one_process_stores_after_a_restart_another_one_does_not_forget() {
        let (family, donor) = (Family::new(), Donor::start());
        let (first, second) = (family.join(&donor), family.join(&donor));
        let (old, new) = (Lease::granted(3, 300).unwrap(), Lease::granted(5, 1).unwrap());
        first.0.ranges().learn(RangeIndex(0), old);
        donor.restart();
        assert_eq!((first.look(), second.look()), (RESTARTED, RESTARTED));
        let forgotten = AtomicU64::new(0);
        let forget = |is_old: &dyn Fn() -> bool| _ = forgotten.fetch_add(u64::from(is_old()), Ordering::SeqCst);
        assert!(first.start_over(&forget));
        assert_eq!((first.room(RangeIndex(0)), first.look()), (None, Ok(())));
        first.0.ranges().learn(RangeIndex(0), new);
        assert!(second.start_over(&forget));
        assert_eq!(first.room(RangeIndex(0)), Some(Room(new.word())));
        assert!(second.room(RangeIndex(0)).is_some() && second.look() == Ok(()));
        assert_eq!((forgotten.into_inner(), first.run(), second.run()), (1, 12, 12));
    }

    /// Leases were renewed as seldom as at first, and ended before that.
    #[test]
    fn leases_are_renewed_as_often_as_the_donors_last_run_says() {
        let (family, donor) = (Family::new(), Donor::start());
        let share = family.join(&donor);
        assert_eq!(share.look_every(), Duration::from_secs(20));
        donor.lease_ms.store(3000, Ordering::SeqCst);
        donor.restart();
        assert_eq!(share.look(), RESTARTED);
        assert!(share.start_over(&|_| {}));
        assert_eq!((share.look(), share.look_every()), (Ok(()), Duration::from_secs(1)));
    }

    /// While one process forgets, the others neither forget nor connect.
    #[test]
    fn while_one_process_forgets_another_one_waits() {
        let (family, donor) = (Family::new(), Donor::start());
        let (first, second) = (family.join(&donor), family.join(&donor));
        donor.restart();
        assert_eq!((first.look(), second.look()), (RESTARTED, RESTARTED));
        let meanwhile = |is_old: &dyn Fn() -> bool| {
            assert!(is_old() && !second.start_over(&|_| panic!("another one does it")));
            assert_eq!(second.look(), RESTARTED);
        };
        assert!(first.start_over(&meanwhile));
        assert!(second.start_over(&|_| panic!("another one has done it")));
        assert_eq!((second.look(), first.look()), (Ok(()), Ok(())));
    }
}
